"""A job that asks in each step whether a checkpoint is wanted: on_demand.py FOLDER. It trains until it is ended."""

import sys
import time

import torch
import torch.distributed as dist

import falcon_torch
import falcon_torch.requests

falcon_torch.requests.HOLD_SECONDS = 60.0  # a busy machine copies slowly, and the test looks when that is over
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
checkpoint = falcon_torch.Checkpoint(sys.argv[1])
done, _ = checkpoint.load()
print("start", done, flush=True)
for step in range(done + 1, 100_000):
    model(torch.randn(4, 8)).square().mean().backward()
    time.sleep(0.005 * (dist.get_rank() + 1))
    if checkpoint.wanted() or step == 3:
        print("save", step, flush=True)
        checkpoint.save({"model": model.module.state_dict(), "at": step}, step)
        print("went on", step, flush=True)
