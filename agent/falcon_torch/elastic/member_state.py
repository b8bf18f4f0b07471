"""Collect what a newcomer gets from a member, send it, and load it.

A module's own state leaves out buffers that are not persistent. They are part of it here: a newcomer has drawn or
computed its own, and nothing would make them alike later.
"""

from __future__ import annotations

import io
from typing import Any, Dict, List, Sequence

import torch

from falcon_torch.store.state import dense, raw

PIECE_BYTES = 32 << 20  # of a state that is broadcast
Buffers = Dict[str, torch.Tensor]  # by name


def collect(parts: Sequence[Any]) -> List[Any]:
    """Return the state of each part in order, then, if there are any, the buffers that states leave out, by part."""
    states = [part.state_dict() for part in parts]
    more = {
        index: buffers
        for index, (part, state) in enumerate(zip(parts, states))
        if isinstance(part, torch.nn.Module) and (buffers := _left_out(part, state))
    }
    return [*states, more] if more else states


def send(group: Any, source: int, own: int, state: Any, *, takes: bool) -> Any:
    """Send a state from one member to all; return it where ``takes``, else None. Raises BrokenError.

    It goes in pieces, since not all members have its memory.

    Args:
        group: has ``broadcast``.
        source: the position of the member that has the state.
        own: this member's position.
        state: of the source; what the others pass is ignored.
        takes: whether this member wants it.
    """
    content = io.BytesIO()
    if own == source:
        torch.save(state, content)
    size = torch.tensor([content.tell()])
    group.broadcast(size, source)
    content.seek(0)
    for first in range(0, int(size.item()), PIECE_BYTES):
        # A tensor of its own for each call: one that is given up may still write into it.
        piece = torch.zeros(min(PIECE_BYTES, int(size.item()) - first), dtype=torch.uint8)
        if own == source:
            content.readinto(raw(piece))
        group.broadcast(piece, source)
        if takes:
            content.write(raw(piece))
    content.seek(0)
    # Any process that reaches the meeting can be the source: it must not get its code to run here.
    return torch.load(content, weights_only=True) if takes else None


def load(parts: Sequence[Any], states: Sequence[Any]) -> None:
    """Give each part what ``collect`` has returned for the same parts of another process."""
    for part, state in zip(parts, states):
        part.load_state_dict(state)
    for more in states[len(parts) :]:
        for index, buffers in more.items():
            for name, value in buffers.items():
                set_buffer(parts[index], name, value)


def _left_out(module: torch.nn.Module, state: Any) -> Buffers:
    """Return the buffers that a module's state does not hold."""
    return {name: buffer.detach() for name, buffer in module.named_buffers() if name not in state}


def set_buffer(module: torch.nn.Module, name: str, value: torch.Tensor) -> None:
    """Give a module's buffer a value, by its name; make the buffer if the module has none."""
    path, _, last = name.rpartition(".")
    owner = module.get_submodule(path)
    own = owner._buffers.get(last)
    if own is None and last not in owner._buffers:
        # A module may make a buffer when it first needs it.
        owner.register_buffer(last, value, persistent=False)
    elif own is not None and _fits(own, value):
        # Other objects may hold the same tensor.
        with torch.no_grad():
            own.copy_(value)
    else:
        # A table that grows with the inputs has another shape in each process.
        setattr(owner, last, value)


def _fits(own: torch.Tensor, value: torch.Tensor) -> bool:
    """Check whether a buffer can take a value in its own memory. One that is expanded cannot."""
    return own.shape == value.shape and own.dtype == value.dtype and dense(own) and own.is_contiguous()
