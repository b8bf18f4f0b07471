"""Hold the facts about a job that one process remembers between two looks."""

from __future__ import annotations

import msgspec

from falcon_operator.api.trainingjob import TrainingJobStatus
from falcon_operator.api.trainingrun import TrainingRun
from falcon_operator.base import effects as fx
from falcon_operator.intent.model.intent import Intent
from falcon_operator.status.failures import Failure, Spell


class Memory(msgspec.Struct):
    """Losing it costs a repeated write."""

    uid: str
    phase: tuple[int, str] = (0, "")  # generation and phase as last seen, and since when
    phase_at: float = float("-inf")  # monotonic
    gated_at: float | None = None  # when a pod with scheduling gates was last seen, monotonic
    reports_until: float = float("-inf")  # reports that came until then have been used, monotonic
    run: TrainingRun | None = None  # as last read or written
    intent: Intent | None = None  # the newest: its figures may be ahead of the run's
    run_at: float = float("-inf")  # of the last write, monotonic
    status_at: float = float("-inf")
    groundwork_at: float = float("-inf")
    has_no_budget: bool = False  # that of an earlier release was looked for
    refused: str = ""
    refused_fences: dict[str, str] = {}
    broken: str = ""
    ended_early: bool = False  # the last look left effects to the next one
    spell: Spell = msgspec.field(default_factory=Spell)  # of looks that did not carry out all that they wanted
    failure: Failure | None = None  # the first thing that this look could not carry out
    conflicts: int = 0  # looks in a row that came too late, or met an object that was gone
    refused_status: TrainingJobStatus | None = None  # refused by the API server; a minimal status was written instead
    recorded: set[fx.Event] = set()  # since the last status that was written whole
