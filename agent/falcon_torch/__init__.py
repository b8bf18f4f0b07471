"""Offer what a training script may import, and never must: near checkpoints, and micro-batches that can move.

    checkpoint = falcon_torch.Checkpoint("/checkpoints")
    step, state = checkpoint.load()
    checkpoint.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step)

    batches = falcon_torch.MicroBatches(model, per_rank=4)
    for micro in batches.step():
        with micro.pass_:
            (loss_of(micro.number) * micro.scale).backward()

Runs in the user's image: the standard library and PyTorch (1.13 and later), Python 3.8 and later. Without Falcon the
same script works with plain files.
"""

from __future__ import annotations

from falcon_torch.microbatches import Dealer, MicroBatch, MicroBatches
from falcon_torch.store.checkpoint import Checkpoint
from falcon_torch.store.format import CheckpointError, DamagedError

__all__ = ["Checkpoint", "CheckpointError", "DamagedError", "Dealer", "MicroBatch", "MicroBatches"]
