"""Which rank this is, and what all ranks agree on."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


class Place(NamedTuple):
    """A rank's place in the job. ``local_rank``: among those of its pod; None where no launcher says it."""

    rank: int
    world_size: int
    local_rank: int | None
    generation: int  # of the job's process group; 0 where no operator counts them


def place() -> Place:
    """Return this process's place: by its process group, or else by its environment."""
    environ = os.environ
    local = next((environ[name] for name in _LOCAL_RANK if environ.get(name, "").isdecimal()), None)
    rank, world = (dist.get_rank(), dist.get_world_size()) if _together() else (_env("RANK", 0), _env("WORLD_SIZE", 1))
    return Place(rank, world, None if local is None else int(local), _env("FALCON_GENERATION", 0))


def gather(value: Any) -> list[Any]:
    """Return every rank's value; this rank's alone where there is no process group. All ranks must call it."""
    if not _together() or dist.get_world_size() == 1:
        return [value]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def from_rank(rank: int, value: Any) -> Any:
    """Return one rank's value, the other ranks' are not used. All ranks must call it."""
    if not _together() or dist.get_world_size() == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values, src=rank)
    return values[0]


def broadcast(rank: int, content: torch.Tensor) -> torch.Tensor:
    """Return one rank's bytes on the CPU, uint8 [n]; the other ranks' are of the same size. All ranks must call it."""
    if not _together() or dist.get_world_size() == 1 or not content.numel():
        return content.cpu()
    on_cpu = "cpu:" in str(dist.get_backend_config())
    content = content.to(torch.device("cpu") if on_cpu else torch.device("cuda", torch.cuda.current_device()))
    dist.broadcast(content, src=rank)
    return content.cpu()


def store(prefix: str) -> Any:
    """Return the process group's store, with keys of the caller's own; None where PyTorch does not give it."""
    try:
        found = dist.distributed_c10d._get_default_store()
    except (AttributeError, RuntimeError, ValueError):
        return None
    return dist.PrefixStore(prefix, found)


def _together() -> bool:
    return bool(dist.is_available() and dist.is_initialized())


def _env(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default
