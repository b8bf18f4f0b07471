"""The example's model, whose checkpoints every rank keeps by falcon_torch: in its pod's memory, with no volume at all.

    torchrun --nproc-per-node 3 remembering.py --examples /opt/examples --steps 200 --every 20

The loss of a step depends on the step alone, never on how often the run was killed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import falcon_torch


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--examples", default="/opt/examples", help="folder of train_gpt.py")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="steps between two checkpoints")
    parser.add_argument("--first", type=int, default=0, help="the step of one more checkpoint")
    parser.add_argument("--folder", help="that outlives the pod; without one, checkpoints are in memory alone")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def log(event: str, **values: float) -> None:
    if dist.get_rank() == 0:
        print(json.dumps({"event": event, **values}), flush=True)


def main() -> None:
    args = parse_arguments()
    sys.path.insert(0, args.examples)
    from train_gpt import Gpt, draw_batch, write_corpus  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    corpus = write_corpus(args.seed, 2000)
    plain = Gpt(layers=4, width=128, heads=4, context=args.context)
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    model(*draw_batch(corpus, args, 0, 0)).backward()  # discarded: settles the buckets, as in the example
    optimizer.zero_grad(set_to_none=True)

    checkpoint = falcon_torch.Checkpoint(args.folder)
    done, state = checkpoint.load()
    if state is not None:
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    log("start", resumed_from=done)
    for step in range(done + 1, args.steps + 1):
        began = time.perf_counter()
        loss = model(*draw_batch(corpus, args, step, dist.get_rank()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        taken = round(time.perf_counter() - began, 6)
        log("step", step=step, loss=float(mean), step_seconds=taken, unix_seconds=time.time())
        if checkpoint.wanted() or step == args.first or step % args.every == 0:
            checkpoint.save({"model": plain.state_dict(), "optimizer": optimizer.state_dict()}, step)
    log("end", steps=args.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
