"""What a training script may import, and never must: checkpoints that are near when a job restarts.

    checkpoint = falcon_torch.Checkpoint("/checkpoints")
    step, state = checkpoint.load()
    checkpoint.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step)

Runs in the user's image: the standard library and PyTorch (1.13 and later), Python 3.8 and later. Without Falcon the
same script works with plain files.
"""

from __future__ import annotations

from falcon_torch.checkpoint import Checkpoint
from falcon_torch.format import CheckpointError, DamagedError

__all__ = ["Checkpoint", "CheckpointError", "DamagedError"]
