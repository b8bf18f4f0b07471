"""What one look at a pool sees, and what it decides. Pure."""

from __future__ import annotations

import msgspec

from falcon_operator.api import WarmPool, WarmPoolStatus
from falcon_operator.effects import Effect
from falcon_operator.ports import NodeView, Occupant, PodView


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's own settings that a burn-in pod needs."""

    namespace: str  # the operator's
    agent_image: str
    image_pull_policy: str


class PoolSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One pool and its surroundings at one moment. ``live_jobs`` was read after ``pool``."""

    pool: WarmPool
    nodes: dict[str, NodeView]
    burn_ins: list[PodView] = []  # the pool's own tests, and its tests of nodes that jobs have left
    occupants: dict[str, list[Occupant]] = {}  # pods by node: the pool's spares, and as many other nodes as are needed
    live_jobs: frozenset[str] = frozenset()  # uids of jobs that are not over
    refused: str = ""  # the API server's answer to the last test's pod that it did not accept
    settings: PoolSettings
    now: float  # unix seconds


class PoolDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The status to write first, and the effects that it asks for."""

    status: WarmPoolStatus
    effects: list[Effect]
    again_seconds: float | None
