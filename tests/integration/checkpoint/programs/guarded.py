"""A job that saves in every step: guarded.py FOLDER. Without WITH_FOLDER to the memory of its pod alone."""

import os
import sys

import torch
import torch.distributed as dist

import falcon_torch

torch.set_num_threads(1)
if os.environ["RANK"] == os.environ.get("WITHOUT_COPIES"):
    del os.environ["FALCON_CHECKPOINT_COPIES"]  # as in a pod that was made before the job wanted copies
dist.init_process_group("gloo")
checkpoint = falcon_torch.Checkpoint(sys.argv[1] if "WITH_FOLDER" in os.environ else None)
done, _ = checkpoint.load()
print("start", done, flush=True)
for step in range(done + 1, done + 4):
    print("save", step, flush=True)
    checkpoint.save({"at": step, "state": torch.full((1000,), step)}, step)
    print("went on", step, flush=True)
print("waited", round(checkpoint.counts.waited_seconds, 3), flush=True)
dist.destroy_process_group()
