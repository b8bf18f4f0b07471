"""A job that saves in every step: guarded.py FOLDER. Without WITH_FOLDER to the memory of its pod alone.

With WAIT_SECONDS a save waits no longer than this for a copy that is under way, and the job goes on until it is ended.
With AGREE_SECONDS ranks wait no longer than this for each other, and with IDLE_SECONDS they give a copy up after this.
Rank WITHOUT_STORE loses the process group's store after its first save, rank READY_WITHOUT_STORE as soon as it has said
that it would leave a save out, and rank OLDER leaves no save out, like a version of Falcon before ADR 161. With
WITHOUT_CHECKSUMS these take longer than the test. With LOADS the ranks load as often.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

import falcon_torch

torch.set_num_threads(1)
if os.environ["RANK"] == os.environ.get("WITHOUT_COPIES"):
    del os.environ["FALCON_CHECKPOINT_COPIES"]  # as in a pod that was made before the job wanted copies
last = 3
if "WAIT_SECONDS" in os.environ:
    falcon_torch.guard.MOST_SECONDS, last = float(os.environ["WAIT_SECONDS"]), 1 << 30
    falcon_torch.guard.IDLE_SECONDS = float(os.environ.get("IDLE_SECONDS", "3600"))
if "AGREE_SECONDS" in os.environ:
    falcon_torch.guard.AGREE_SECONDS = float(os.environ["AGREE_SECONDS"])


if "WITHOUT_CHECKSUMS" in os.environ:
    falcon_torch.store.buffers.Buffer.add_checksums = lambda _buffer, _commit: time.sleep(3600)


class LostStore:
    """A store to which the connection is lost."""

    def add(self, *_args):
        raise RuntimeError("connection reset by peer")


class StoreUntilReady:
    """A store to which the connection is lost when this rank has said that it would leave a save out."""

    def __init__(self, store):
        self.store = store

    def add(self, key, count):
        found = self.store.add(key, count)
        if key.startswith("ready") and count:
            self.store = LostStore()
        return found

    def compare_set(self, *args):
        return self.store.compare_set(*args)


dist.init_process_group("gloo")
checkpoint = falcon_torch.Checkpoint(sys.argv[1] if "WITH_FOLDER" in os.environ else None)
for _ in range(int(os.environ.get("LOADS", "1"))):
    done, _ = checkpoint.load()
checkpoint.leaves_out = os.environ["RANK"] != os.environ.get("OLDER")
if os.environ["RANK"] == os.environ.get("READY_WITHOUT_STORE"):
    checkpoint._guard._store = StoreUntilReady(checkpoint._guard._store)
print("start", done, flush=True)
for step in range(done + 1, done + 1 + last):
    print("save", step, flush=True)
    saved = checkpoint.save({"at": step, "state": torch.full((1000,), step)}, step)
    print("went on" if saved else "left out", step, flush=True)
    if os.environ["RANK"] == os.environ.get("WITHOUT_STORE"):
        checkpoint._guard._store = LostStore()
    # No rank is ahead of another by more than one save: they exchange something between two.
    dist.barrier()
    time.sleep(0.3 if last > 3 else 0)
print("waited", round(checkpoint.counts.waited_seconds, 3), flush=True)
dist.destroy_process_group()
