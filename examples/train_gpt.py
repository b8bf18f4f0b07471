"""A small GPT trained data-parallel on text that a toy grammar writes. Plain PyTorch (1.13 or newer), nothing else.

    torchrun --nproc-per-node 3 examples/train_gpt.py --steps 200 --checkpoint-dir /tmp/gpt

It runs on CPU with Gloo and on GPUs with NCCL, under any launcher that sets torchrun's environment variables.

The loss depends on the arguments and the world size alone, never on how often the run was killed: a resumed run repeats
the undisturbed one bit for bit. Three things make it so. Every random choice of a step is drawn from a generator seeded
by (seed, step, place in the global batch), so a checkpoint needs no random state. A checkpoint holds model, optimizer
and step, and appears under its name only when it is complete and on disk. And one discarded pass comes before the first
step, because DDP lays out its gradient buckets again after the first pass, and with them the order in which the ranks'
gradients are added.

SIGTERM keeps its default action and so ends the process at once, even inside a collective, where no Python handler
would run; the newest checkpoint is complete at any instant.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

Checkpoint = dict[str, Any]

NOUNS = ("node", "rank", "link", "ring", "batch", "layer", "token", "model", "queue", "cable", "worker", "kernel")
VERBS = ("send", "wait", "read", "hold", "slow", "drop", "find")
ADJECTIVES = ("slow", "fast", "small", "large", "late", "early", "warm", "cold")
ALPHABET = "abcdefghijklmnopqrstuvwxyz .\n"
KEPT_CHECKPOINTS = 2


# -- the text ----------------------------------------------------------------------------------------------------------
def write_corpus(seed: int, sentences: int) -> Tensor:
    """Return sentences of the grammar as indices into ALPHABET; the same for every rank.

    Number agreement ("two nodes send", "a node sends") gives the model something to learn beyond the spelling.
    """
    draw = random.Random(seed)
    lines = []
    for _ in range(sentences):
        plural = draw.random() < 0.5
        subject, verb, thing = draw.choice(NOUNS), draw.choice(VERBS), draw.choice(NOUNS)
        lines.append(
            f"two {draw.choice(ADJECTIVES)} {subject}s {verb} the {thing}.\n"
            if plural
            else f"a {draw.choice(ADJECTIVES)} {subject} {verb}s the {draw.choice(ADJECTIVES)} {thing}.\n"
        )
    index = {letter: i for i, letter in enumerate(ALPHABET)}
    return torch.tensor([index[letter] for letter in "".join(lines)])


def draw_batch(corpus: Tensor, args: argparse.Namespace, step: int, place: int) -> tuple[Tensor, Tensor]:
    """Draw a micro-batch and its targets, each (batch, context); ``place`` numbers the micro-batches of all ranks."""
    seed = random.Random(f"{args.seed}/{step}/{place}").getrandbits(63)
    starts = torch.randint(
        len(corpus) - args.context, (args.batch_size, 1), generator=torch.Generator().manual_seed(seed)
    )
    window = corpus[starts + torch.arange(args.context + 1)]
    return window[:, :-1], window[:, 1:]


# -- the model ---------------------------------------------------------------------------------------------------------
class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each on a normalised copy of the residual stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, stream: Tensor, future: Tensor) -> Tensor:
        batch, length, width = stream.shape
        split = (batch, length, self.heads, width // self.heads)
        query, key, value = (
            part.view(split).transpose(1, 2) for part in self.qkv(self.attention_norm(stream)).chunk(3, 2)
        )
        scores = (query @ key.transpose(2, 3)) / math.sqrt(width // self.heads)
        attended = scores.masked_fill(future, -math.inf).softmax(3) @ value
        stream = stream + self.merge(attended.transpose(1, 2).reshape(batch, length, width))
        fed: Tensor = self.feed(self.feed_norm(stream))
        return stream + fed


class Gpt(nn.Module):
    """A model that takes letters and returns the mean cross-entropy of the next letters."""

    def __init__(self, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(ALPHABET), width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(ALPHABET))

    def forward(self, letters: Tensor, targets: Tensor) -> Tensor:
        length = letters.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=letters.device).triu(1)
        stream = self.letters(letters) + self.places.weight[:length]
        for block in self.blocks:
            stream = block(stream, future)
        loss: Tensor = functional.cross_entropy(self.head(self.norm(stream)).flatten(0, 1), targets.flatten())
        return loss


# -- checkpoints -------------------------------------------------------------------------------------------------------
def saved_steps(directory: Path) -> list[int]:
    """Return the steps of the complete checkpoints, oldest first."""
    return sorted(int(path.stem.split("-")[1]) for path in directory.glob("step-*.pt"))


def checkpoint_path(directory: Path, step: int) -> Path:
    return directory / f"step-{step:08d}.pt"


def sync_to_disk(path: Path) -> None:
    """Call fsync on a file, or on a folder (which makes a rename in it last)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save_checkpoint(directory: Path, state: Checkpoint) -> None:
    """Write the checkpoint atomically: a reader sees the whole file or none. Then delete all but the newest two."""
    directory.mkdir(parents=True, exist_ok=True)
    for stale in directory.glob("*.tmp"):
        stale.unlink(missing_ok=True)  # of a life that was killed while it wrote
    partial = directory / f"step-{state['step']:08d}.{os.getpid()}.tmp"
    torch.save(state, partial)
    sync_to_disk(partial)
    partial.rename(checkpoint_path(directory, state["step"]))
    sync_to_disk(directory)
    for step in saved_steps(directory)[:-KEPT_CHECKPOINTS]:
        checkpoint_path(directory, step).unlink(missing_ok=True)


def agree_on_checkpoint(directory: Path, device: torch.device) -> int | None:
    """Return the step to resume from, None for a fresh start.

    It is the step of rank 0's newest checkpoint, and the same for all ranks.
    """
    newest = torch.tensor([max(saved_steps(directory), default=-1)], device=device)
    dist.broadcast(newest, src=0)
    return None if newest.item() < 0 else int(newest.item())


# -- training ----------------------------------------------------------------------------------------------------------
class Log:
    """Progress on rank 0's standard output, for people or, one JSON object a line, for programs."""

    def __init__(self, rank: int, as_json: bool) -> None:
        self._silent = rank != 0
        self._as_json = as_json

    def __call__(self, event: str, **values: float | str) -> None:
        if self._silent:
            return
        if self._as_json:
            print(json.dumps({"event": event, **values}), flush=True)
        else:
            print(event, *(f"{name}={value!r}" for name, value in values.items()), flush=True)


def run_step(
    model: DistributedDataParallel, corpus: Tensor, args: argparse.Namespace, step: int, device: torch.device
) -> Tensor:
    """Accumulate gradients of a global batch over this rank's micro-batches; return their mean loss, one float.

    Only the last micro-batch's backward pass exchanges gradients.
    """
    total = torch.zeros(1, device=device)
    for i in range(args.micro_batches):
        place = dist.get_rank() * args.micro_batches + i
        letters, targets = (part.to(device) for part in draw_batch(corpus, args, step, place))
        last = i == args.micro_batches - 1
        with contextlib.nullcontext() if last else model.no_sync():
            loss = model(letters, targets) / args.micro_batches
            loss.backward()
        total += loss.detach()
    return total


def mean_over_ranks(value: Tensor) -> float:
    dist.all_reduce(value)
    return float(value.item()) / dist.get_world_size()


def train(args: argparse.Namespace, device: torch.device) -> None:
    log = Log(dist.get_rank(), args.log_json)
    torch.manual_seed(args.seed)
    corpus = write_corpus(args.seed, args.sentences)
    plain = Gpt(args.layers, args.width, args.heads, args.context).to(device)
    model = DistributedDataParallel(plain, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=args.learning_rate)
    model(*(part.to(device) for part in draw_batch(corpus, args, 0, 0))).backward()  # discarded: settles the buckets
    optimizer.zero_grad(set_to_none=True)

    done, mean_loss = 0, math.nan
    found = None if args.checkpoint_dir is None else agree_on_checkpoint(args.checkpoint_dir, device)
    if found is not None:
        path = checkpoint_path(args.checkpoint_dir, found)
        if not path.exists():
            raise SystemExit(f"rank 0 resumes from {path}, absent here: --checkpoint-dir must be shared by all ranks")
        # A file of this script's own; the safe loader of PyTorch 1.13 knows no floating-point numbers.
        state = torch.load(path, map_location=device, weights_only=False)
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done, mean_loss = state["step"], state["loss"]
    size = sum(parameter.numel() for parameter in plain.parameters())
    log("start", resumed_from=done, world_size=dist.get_world_size(), parameters=size, torch=torch.__version__)

    for step in range(done + 1, args.steps + 1):
        began = time.perf_counter()
        mean_loss = mean_over_ranks(run_step(model, corpus, args, step, device))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        elapsed_seconds = time.perf_counter() - began
        if step % args.log_every == 0:
            log("step", step=step, loss=mean_loss, step_seconds=round(elapsed_seconds, 6), unix_seconds=time.time())
        due = step % args.checkpoint_every == 0 or step == args.steps
        if args.checkpoint_dir is not None and dist.get_rank() == 0 and due:
            state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "loss": mean_loss}
            save_checkpoint(args.checkpoint_dir, state)
    log("end", steps=args.steps, final_loss=mean_loss)


def parse_arguments() -> argparse.Namespace:
    def positive(text: str) -> int:
        if (value := int(text)) < 1:
            raise argparse.ArgumentTypeError(f"{value} is not a positive number")
        return value

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=positive, default=200, help="optimizer steps in all, earlier lives included")
    parser.add_argument("--micro-batches", type=positive, default=4, help="per rank and step")
    parser.add_argument("--batch-size", type=positive, default=4, help="sequences in a micro-batch")
    parser.add_argument("--seed", type=int, default=1, help="of the text, the weights and the order of the data")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--layers", type=positive, default=4)
    parser.add_argument("--width", type=positive, default=128, help="a multiple of --heads")
    parser.add_argument("--heads", type=positive, default=4)
    parser.add_argument("--context", type=positive, default=64, help="letters that the model sees")
    parser.add_argument("--sentences", type=positive, default=2000, help="length of the generated text")
    parser.add_argument("--checkpoint-dir", type=Path, help="shared by all ranks; left out: no checkpoints")
    parser.add_argument("--checkpoint-every", type=positive, default=20, help="steps")
    parser.add_argument("--log-every", type=positive, default=1, help="steps")
    parser.add_argument("--log-json", action="store_true", help="one JSON object a line")
    args = parser.parse_args()
    if args.width % args.heads:
        parser.error(f"--width {args.width} is not a multiple of --heads {args.heads}")
    return args


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)  # a rank has its share of the cores, not all that it can see
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        train(args, device)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
