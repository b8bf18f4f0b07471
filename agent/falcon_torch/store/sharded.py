"""Gather sharded parameters (FSDP) once a step instead of in each pass.

Usually each pass through such a model gathers the parameters, and each backward pass scatters the gradients. Ranks with
different numbers of micro-batches would then wait for each other for ever. Gathered once, the parameters stay with
the rank from its first micro-batch to its last, and the gradients are exchanged after the last: each step has the same
collectives, whatever a rank's share is. PyTorch has this way for the accumulation of gradients. It takes the memory of
all parameters and all gradients, so that the script has to ask for it.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, List

import torch

_KEEPS = (
    "set_requires_gradient_sync",
    "set_reshard_after_forward",
    "set_reshard_after_backward",
    "set_unshard_in_backward",
)


def is_sharded(model: torch.nn.Module) -> bool:
    """Check whether passes through the model gather parameters."""
    return bool(parts(model) or wrapped(model))


def parts(model: torch.nn.Module) -> List[Any]:
    """Return the modules that ``fully_shard`` was called on."""
    return [module for module in model.modules() if hasattr(type(module), "set_requires_gradient_sync")]


def wrapped(model: torch.nn.Module) -> List[Any]:
    """Return the modules that are wrapped in the older FullyShardedDataParallel."""
    return [module for module in model.modules() if hasattr(module, "_fsdp_wrapped_module")]


def hindrance(model: torch.nn.Module, ranks: int, *, gather_once: bool) -> str:
    """Return why passes through a sharded model make other collectives on other ranks; "" if they do not."""
    if wrapped(model):
        return "parameters are sharded by the older FullyShardedDataParallel: use fully_shard"
    if not gather_once:
        return "parameters are sharded and gathered in each pass: gather_once=True gathers them once a step"
    if missing := _missing(model):
        return f"this PyTorch cannot keep parameters gathered: its fully_shard has no {missing[0]}"
    if any(hasattr(each, "device_mesh") and each.device_mesh.size() != ranks for each in model.parameters()):
        return "parameters are sharded over a part of the ranks alone"
    return ""


def kept_gathered(model: torch.nn.Module) -> List[Any]:
    """Let the model keep its parameters after each forward pass from now on; return the modules that do."""
    keep = [] if _missing(model) else parts(model)
    for part in keep:
        part.set_reshard_after_forward(False, recurse=False)
        # Whatever a backward pass needs is there. An evaluation leaves a list of what to gather ahead, which the next
        # backward pass works off: on a rank with a single micro-batch alone after its gradients are exchanged.
        part.set_unshard_in_backward(False)
    return keep


def _missing(model: torch.nn.Module) -> List[str]:
    """Return what this PyTorch's sharded modules lack to keep their parameters gathered."""
    return [method for method in _KEEPS if not all(hasattr(part, method) for part in parts(model))]


@contextlib.contextmanager
def pass_(modules: List[Any], *, last: bool) -> Iterator[None]:
    """Be one of a step's passes: the last one exchanges the gradients, and gives the gathered parameters back."""
    for part in modules:
        part.set_requires_gradient_sync(last, recurse=False)
        part.set_reshard_after_backward(last, recurse=False)
    yield
