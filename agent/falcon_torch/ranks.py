"""Find which rank this is, and what all ranks agree on."""

from __future__ import annotations

import os
import pickle
import struct
from typing import Any, List, NamedTuple

import torch
import torch.distributed as dist

from falcon_torch.interruption import of_a_handler
from falcon_torch.store.state import raw

SMALL_BYTES = 1024  # a value that fits, with its length, is gathered in one collective call
_LENGTH = struct.Struct("<Q")
_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


class Place(NamedTuple):
    """A rank's place in the job. ``local_rank``: among those of its pod; None where no launcher sets it."""

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


def is_elastic() -> bool:
    """Check whether a launcher has started this process that lets the others go on without it."""
    return dist.is_available() and os.environ.get("FALCON_ELASTIC") == "1"


def gather(value: Any) -> List[Any]:
    """Return every rank's value; this rank's alone where there is no process group. All ranks must call it.

    The values are pickled. Where each takes at most ``SMALL_BYTES`` it is one collective call, which a restart waits
    for; PyTorch's own ``all_gather_object`` makes two, since it knows no length ahead.
    """
    if not _together() or dist.get_world_size() == 1:
        return [value]
    content = pickle.dumps(value)
    whole = _LENGTH.pack(len(content)) + content
    found = _gather_bytes(whole[:SMALL_BYTES].ljust(SMALL_BYTES, b"\0"))
    lengths = [_LENGTH.size + _LENGTH.unpack_from(each)[0] for each in found]
    # Some value did not fit. All ranks have seen this, so all of them make the second call.
    if max(lengths) > SMALL_BYTES:
        found = _gather_bytes(whole.ljust(max(lengths), b"\0"))
    return [pickle.loads(each[_LENGTH.size : length]) for each, length in zip(found, lengths)]


def _gather_bytes(content: bytes) -> List[bytes]:
    """Return every rank's bytes, of the same number on all ranks."""
    own = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(_device())
    each = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(each, own)
    return [bytes(raw(on_cpu)) for on_cpu in (one.cpu() for one in each)]


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
    content = content.to(_device())
    dist.broadcast(content, src=rank)
    return content.cpu()


def store(prefix: str) -> Any:
    """Return the process group's store, with keys of the caller's own; None where PyTorch does not give it."""
    try:
        found = dist.distributed_c10d._get_default_store()
    except (AttributeError, RuntimeError, ValueError) as error:
        if of_a_handler(error):
            raise
        return None
    return dist.PrefixStore(prefix, found)


def _device() -> torch.device:
    """Return where the process group takes its tensors: on the CPU where it can."""
    try:
        on_cpu = "cpu:" in str(dist.get_backend_config())
    except AttributeError:  # PyTorch before 2.1
        on_cpu = dist.get_backend() in ("gloo", "mpi")
    return torch.device("cpu") if on_cpu else torch.device("cuda", torch.cuda.current_device())


def _together() -> bool:
    return bool(dist.is_available() and dist.is_initialized())


def _env(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default
