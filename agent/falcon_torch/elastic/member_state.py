"""Collect what a newcomer gets from a member, and load it.

A module's own state leaves out buffers that are not persistent. They are part of it here: a newcomer has drawn or
computed its own, and nothing would make them alike later.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import torch

from falcon_torch.store.state import dense

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


def load(parts: Sequence[Any], states: Sequence[Any]) -> None:
    """Give each part what ``collect`` has returned for the same parts of another process."""
    for part, state in zip(parts, states):
        part.load_state_dict(state)
    for more in states[len(parts) :]:
        for index, buffers in more.items():
            for name, value in buffers.items():
                _set_buffer(parts[index], name, value)


def _left_out(module: torch.nn.Module, state: Any) -> Buffers:
    """Return the buffers that a module's state does not hold."""
    return {name: buffer.detach() for name, buffer in module.named_buffers() if name not in state}


def _set_buffer(module: torch.nn.Module, name: str, value: torch.Tensor) -> None:
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
