"""The example's model, whose micro-batches may move between the ranks.

    torchrun --nproc-per-node 3 sharing.py --examples examples --steps 200 [--every 20] [--sharded]

With ``--every``, its checkpoints are falcon_torch's, in the pods' memory. With ``--sharded``, each rank has a part of
the parameters (FSDP), and they are gathered once a step.
The loss of a step is that of the same global batch, whichever rank computes what.
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
    parser.add_argument("--micro-batches", type=int, default=4, help="per rank, in the even split")
    parser.add_argument("--every", type=int, default=0, help="steps between two checkpoints; 0: there are none")
    parser.add_argument("--sharded", action="store_true", help="shard the parameters; without checkpoints")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def log(event: str, **values: object) -> None:
    if dist.get_rank() == 0:
        print(json.dumps({"event": event, **values}), flush=True)


def sharded(plain: torch.nn.Module) -> torch.nn.Module:
    """Shard each block's parameters over all ranks, and then what is left."""
    from torch.distributed.device_mesh import init_device_mesh  # not in the image's PyTorch
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in plain.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(plain, mesh=mesh)


def main() -> None:
    args = parse_arguments()
    sys.path.insert(0, args.examples)
    from train_gpt import Gpt, draw_batch, mean_over_ranks, write_corpus  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    corpus = write_corpus(args.seed, 2000)
    plain = Gpt(layers=4, width=128, heads=4, context=args.context)
    model = sharded(plain) if args.sharded else DistributedDataParallel(plain)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    model(*draw_batch(corpus, args, 0, 0)).backward()  # discarded: settles the buckets, as in the example
    optimizer.zero_grad(set_to_none=True)
    batches = falcon_torch.MicroBatches(model, per_rank=args.micro_batches, gather_once=args.sharded)
    checkpoint = falcon_torch.Checkpoint() if args.every else None
    done, state = checkpoint.load() if checkpoint is not None else (0, None)
    if state is not None:
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    log("start", hindrance=batches.hindrance, resumed_from=done)

    for step in range(done + 1, args.steps + 1):
        began = time.perf_counter()
        total = torch.zeros(1)
        for micro in batches.step():
            with micro.pass_:
                loss = model(*draw_batch(corpus, args, step, micro.number)) * micro.scale
                loss.backward()
            total += loss.detach()
        loss = mean_over_ranks(total)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds = round(time.perf_counter() - began, 6)
        log("step", step=step, loss=loss, step_seconds=seconds, unix_seconds=time.time(), shares=batches.shares)
        if checkpoint is not None and (checkpoint.wanted() or step % args.every == 0):
            checkpoint.save({"model": plain.state_dict(), "optimizer": optimizer.state_dict()}, step)
    dist.destroy_process_group()


main()
