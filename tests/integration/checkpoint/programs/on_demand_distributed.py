"""An FSDP2 job that asks in each step whether a checkpoint is wanted: on_demand_distributed.py FOLDER.

It saves by ``dcp.save``; with HOW=async by ``dcp.async_save``, with HOW=stager by the latter and a stager of its own,
with HOW=late by such a stager and a thread that begins to save after many steps.
"""

import os
import sys
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import falcon_torch
import falcon_torch.dcp
import falcon_torch.requests

warnings.filterwarnings("ignore")
falcon_torch.requests.HOLD_SECONDS = 60.0  # a busy machine copies slowly, and the test looks when that is over
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(1)
# Two threads must not use one Gloo group at a time: training has its own, as a job on NCCL has.
mesh = DeviceMesh.from_group(dist.new_group(), "cpu")
model = fully_shard(torch.nn.Linear(8, 7), mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
checkpoint = falcon_torch.Checkpoint(sys.argv[1])
reader = falcon_torch.dcp.Reader(checkpoint)
HOW = os.environ.get("HOW", "")
saving = []


def state():
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


class LateWriter(falcon_torch.dcp.Writer):
    """Plans for as long as ranks of a large job do."""

    def prepare_local_plan(self, plan):
        time.sleep(0.5)
        return plan


def save(step):
    writer = (LateWriter if HOW == "late" else falcon_torch.dcp.Writer)(checkpoint, step)
    if not HOW:
        dcp.save(state(), storage_writer=writer)
        return
    if saving:
        saving.pop().result()
    own = {"async_stager": BlockingAsyncStager()} if HOW in ("stager", "late") else {}
    saving.append(dcp.async_save(state(), storage_writer=writer, **own))


if reader.step:
    found = state()
    dcp.load(found, storage_reader=reader)
    set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
print("start", reader.step, flush=True)
for step in range(reader.step + 1, 100_000):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    print("trained", step, flush=True)
    time.sleep(0.005 * (dist.get_rank() + 1))
    if checkpoint.wanted() or step == 3:
        print("save", step, flush=True)
        save(step)
        print("went on", step, flush=True)
