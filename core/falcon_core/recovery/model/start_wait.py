"""A pod that has its node and has not started there yet."""

from __future__ import annotations

import msgspec


class StartWait(msgspec.Struct, frozen=True, kw_only=True):
    """What a placed pod waits for, as its kubelet says it."""

    text: str = ""  # for people; empty: the kubelet says nothing
    error_class: str = ""  # of these words
    failing: bool = False  # they are an error
    working: bool = False  # an init container of the user's runs there
    seconds: float = 0.0  # since it has its node
