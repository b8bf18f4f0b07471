"""Find DistributedDataParallel around a model, and silence it: the group exchanges what it would have exchanged.

Its reducer makes collective calls inside forward and backward passes: for the order of its buckets after the first
pass, buffers, the map of unused parameters, and the gradients. None of these calls can be given up when a member is
lost, and all members have to make the same number of them. So the wrapper's forward pass is replaced by its module's,
which makes no such call, and its ``no_sync`` has nothing to do.
"""

from __future__ import annotations

import gc
from typing import Any, List, Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

_REMEDY = "which would exchange too: let one module hold all that is trained, wrap it, and wrap nothing else"


def wrapper(model: torch.nn.Module, others: Sequence[Any] = ()) -> DistributedDataParallel | None:
    """Return the DistributedDataParallel that a model is, or contains (``torch.compile`` wraps it); None: neither.

    ``others``: what else belongs to the training's state.

    Raises ValueError for a wrapper whose work the group cannot do, for one around the model, and for any second one.
    """
    found = _wrappers_in(model)
    if len(found) > 1:
        raise ValueError(f"{len(found)} modules are in DistributedDataParallel: wrap the whole model once")
    for index, other in enumerate(others):
        if isinstance(other, torch.nn.Module) and _wrappers_in(other):
            raise ValueError(f"others[{index}] is in DistributedDataParallel, {_REMEDY}")
    if reason := _foreign(model, found):
        raise ValueError(reason)
    if found and (reason := _hindrance(found[0])):
        raise ValueError(f"the model's DistributedDataParallel has {reason}: leave that out")
    return found[0] if found else None


def _wrappers_in(model: torch.nn.Module) -> List[DistributedDataParallel]:
    return [module for module in model.modules() if isinstance(module, DistributedDataParallel)]


def _foreign(model: torch.nn.Module, found: Sequence[DistributedDataParallel]) -> str:
    """Return what is wrong with this process's wrappers that are not in the model; "": nothing."""
    # Without a process group there is no wrapper, and a newcomer need not spend time on the search.
    if not dist.is_initialized() or not _foreign_to(model, found, _living()):
        return ""
    # The script may have dropped it, in a cycle of references that was not yet collected.
    gc.collect()
    return _foreign_to(model, found, _living())


def _living() -> List[DistributedDataParallel]:
    # A wrapper registers itself nowhere. ``type``: asking a lazy proxy for its class may import what it stands for.
    return [each for each in gc.get_objects() if DistributedDataParallel in type(each).__mro__]


def _foreign_to(
    model: torch.nn.Module, found: Sequence[DistributedDataParallel], living: Sequence[DistributedDataParallel]
) -> str:
    if any(getattr(each, "module", None) is model for each in living):
        return "the model is in DistributedDataParallel, which would exchange too: pass the wrapper"
    # A group before this one may have silenced its wrapper.
    if any(each not in found and "forward" not in vars(each) for each in living):
        return f"another module is in DistributedDataParallel, {_REMEDY}"
    return ""


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
    # Without its own forward pass the wrapper's hooks expect no backward pass, not even in a static graph.
    model.forward = model.module.__call__
    # The reducer's hooks for compiled backward passes check only this.
    model.require_backward_grad_sync = False
