"""What a WarmPool's status keeps of its nodes' tests; a part of ``api``."""

from __future__ import annotations

from typing import Literal

import msgspec


class NodeCheck(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A test of a node, and what it measured."""

    at: str
    outcome: Literal["Running", "Passed", "Slow", "Disturbed", "Failed"]
    gflops: str = ""  # decimal
    scores: dict[str, str] = {}  # decimal rates of the executor, by name
    message: str = ""


class NodeChecks(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The newest tests of a node, the oldest first."""

    node: str
    uid: str = ""  # of the Node: a new machine of the same name has no history
    checks: list[NodeCheck] = []
