"""A job whose volume is too slow for its saves: ended.py FOLDER. It trains until its pod ends.

HOW=distributed: it saves by torch.distributed.checkpoint. BEHIND=1: its volume is fast.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import DefaultSavePlanner

import falcon_torch
import falcon_torch.dcp
from falcon_torch.store.volume import Volume

torch.set_num_threads(1)
if "BEHIND" not in os.environ:
    Volume.copy = lambda *_: time.sleep(600)
dist.init_process_group("gloo")
checkpoint = falcon_torch.Checkpoint(sys.argv[1])
distributed = os.environ.get("HOW") == "distributed"


def state_of(step):
    generator = torch.Generator().manual_seed(step)
    return {"weights": torch.randn(1000, 100, generator=generator), "at": step}


def load():
    if not distributed:
        return checkpoint.load()
    reader = falcon_torch.dcp.Reader(checkpoint)
    state = state_of(0)
    if reader.step:
        dcp.load(state, storage_reader=reader)
    return reader.step, state


def save(step):
    if distributed:
        dcp.save(state_of(step), storage_writer=falcon_torch.dcp.Writer(checkpoint, step), planner=DefaultSavePlanner())
    else:
        checkpoint.save(state_of(step), step)


done, state = load()
if done:
    assert state["at"] == done
    assert torch.equal(state["weights"], state_of(done)["weights"]), "bit for bit"
print("start", done, flush=True)
for step in range(done + 1, done + 3):
    save(step)
    print("saved", step, flush=True)
while True:
    time.sleep(1)
