"""Define the effects that a decision asks for. The name or key of an effect makes it idempotent."""

from __future__ import annotations

import msgspec

from falcon_core.wire.launcher.imports import Imports
from falcon_core.wire.measurement.probe import ProbeOrder
from falcon_core.wire.reporting.messages import Plan
from falcon_core.wire.saves.peers import Peers
from falcon_operator.base.ports import Manifest, PodView


class EnsureGroundwork(msgspec.Struct, frozen=True):
    """The headless Service and the agents' credentials."""

    service: Manifest


class DeleteBudget(msgspec.Struct, frozen=True):
    """The deletion of the PodDisruptionBudget that an earlier release has made for the job."""


class CreatePod(msgspec.Struct, frozen=True):
    manifest: Manifest


class DeletePod(msgspec.Struct, frozen=True):
    pod: PodView
    grace_seconds: int | None = None


class PublishPlan(msgspec.Struct, frozen=True):
    plan: Plan


class AskDetail(msgspec.Struct, frozen=True):
    """The ranks of a generation whose agents are asked for all that they know."""

    generation: int
    ranks: list[int]


class PublishPeers(msgspec.Struct, frozen=True):
    """Who keeps copies of whose checkpoints."""

    peers: Peers


class PublishImports(msgspec.Struct, frozen=True):
    """What standbys in pods without a replica import."""

    imports: Imports


class OrderMicrobatches(msgspec.Struct, frozen=True):
    """How many micro-batches each rank of a generation is to compute."""

    generation: int
    shares: list[int]


class OrderProbe(msgspec.Struct, frozen=True):
    """Where ranks are to stand still, and what is measured then."""

    order: ProbeOrder


class ChangeClaims(msgspec.Struct, frozen=True):
    """The spares that a job takes and gives back, all in one write of the pool's status."""

    take: list[str] = []  # keys of the claims
    release: list[str] = []
    avoid: list[str] = []  # nodes that the job does not use


class BurnIn(msgspec.Struct, frozen=True):
    """A test of a node from outside the job; the pool gives the length and the peers' scores."""

    node: str
    since: float  # unix seconds, of the exclusion's newest test: the test's name derives from it


class TaintNode(msgspec.Struct, frozen=True):
    node: str
    key: str
    value: str


class UntaintNode(msgspec.Struct, frozen=True):
    node: str
    key: str
    value: str | None = None  # a taint of another value stays; None: whatever its value is


class DeleteJob(msgspec.Struct, frozen=True):
    """The deletion of a job whose ``ttlSecondsAfterFinished`` has passed."""


class Event(msgspec.Struct, frozen=True):
    """An Event, recorded once, after the intent and the status from which it follows have been written."""

    type: str  # "Normal" | "Warning"
    reason: str
    note: str


Effect = (
    EnsureGroundwork
    | DeleteBudget
    | CreatePod
    | DeletePod
    | PublishPlan
    | AskDetail
    | PublishPeers
    | PublishImports
    | OrderMicrobatches
    | OrderProbe
    | ChangeClaims
    | BurnIn
    | TaintNode
    | UntaintNode
    | DeleteJob
)
