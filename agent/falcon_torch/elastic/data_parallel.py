"""Find DistributedDataParallel around a model, and silence it: the group exchanges what it would have exchanged.

Its reducer makes collective calls inside forward and backward passes, in place of its own buckets: the state of the
model when it verifies it, the order of the buckets after the first pass, buffers, the map of unused parameters, the
gradients. None of them can be given up when a member is lost, and all members have to make the same number of them. So
the wrapper's forward pass is replaced by its module's, which makes none, and its ``no_sync`` has nothing to do.
"""

from __future__ import annotations

import gc

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def wrapper(model: torch.nn.Module) -> DistributedDataParallel | None:
    """Return the DistributedDataParallel that a model is, or contains (``torch.compile`` wraps it); None: neither.

    Raises ValueError for one that the group cannot stand in for, or that is around the model.
    """
    found = [module for module in model.modules() if isinstance(module, DistributedDataParallel)]
    if not found:
        # A wrapper takes a process group. Without one, a newcomer need not spend its time on looking for it.
        if dist.is_initialized() and _is_wrapped(model):
            raise ValueError("the model is in DistributedDataParallel, which would exchange too: pass that instead")
        return None
    if len(found) > 1:
        raise ValueError(f"{len(found)} modules are in DistributedDataParallel: wrap the whole model once")
    if reason := _hindrance(found[0]):
        raise ValueError(f"the model's DistributedDataParallel has {reason}: leave that out")
    return found[0]


def _is_wrapped(model: torch.nn.Module) -> bool:
    # A wrapper registers itself nowhere. ``type``: asking a lazy proxy for its class may import what it stands for.
    wrappers = [each for each in gc.get_objects() if issubclass(type(each), DistributedDataParallel)]
    return any(getattr(each, "module", None) is model for each in wrappers)


def _hindrance(model: DistributedDataParallel) -> str:
    """Return what the group does not do in place of the wrapper; "": it does everything."""
    if model.process_group is not dist.group.WORLD:
        return "a process group of its own"
    # Among them are those whose exchange is delayed (``delay_all_reduce_named_params``).
    if model.parameters_to_ignore:
        return f"parameters or buffers that it ignores ({', '.join(sorted(model.parameters_to_ignore)[:3])})"
    if getattr(model, "_comm_hooks", None) or hasattr(model, "buffer_hook"):
        return "a communication hook"
    return ""


def keeps_buffers_alike(model: DistributedDataParallel) -> bool:
    """Check whether the wrapper gives all ranks the first rank's buffers."""
    return bool(model.broadcast_buffers)


def silence(model: DistributedDataParallel) -> None:
    """Let the wrapper make no collective call any more."""
    # Without its own forward pass the wrapper's hooks expect no backward pass, in a static graph neither.
    model.forward = model.module.__call__
    # The hooks of the reducer for compiled backward passes ask for this alone.
    model.require_backward_grad_sync = False
