"""Name the events that a look at a job finds: each closes an incident or a planned move."""

from __future__ import annotations

from typing import Literal

import msgspec

from falcon_core.recovery.model.failure import HangIncident, RetryIncident, StopIncident
from falcon_core.recovery.model.planned_move import PlannedMove
from falcon_core.recovery.model.slowdown import SlowIncident


class SlowClosed(msgspec.Struct, frozen=True, kw_only=True):
    """A slowdown is over."""

    incident: SlowIncident
    outcome: Literal["Relieved", "Helped", "NotHelped", "Superseded", "OtherCalls"]
    iteration_ns: int | None = None
    cost_seconds: float | None = None


class StopClosed(msgspec.Struct, frozen=True, kw_only=True):
    """A failure is over: training goes on, or the job was given up."""

    incident: StopIncident
    resumed: bool
    seconds: float  # since the first sign


class HangClosed(msgspec.Struct, frozen=True, kw_only=True):
    """A hang is over: training moves again, or all ranks were restarted."""

    incident: HangIncident
    moved: bool
    seconds: float


class RetriesClosed(msgspec.Struct, frozen=True, kw_only=True):
    """Set-up calls were repeated in place, and the ranks went on."""

    incident: RetryIncident


class MoveClosed(msgspec.Struct, frozen=True, kw_only=True):
    """Training goes on after a planned move."""

    incident: PlannedMove
    seconds: float  # time for which training stood still


Event = SlowClosed | StopClosed | HangClosed | RetriesClosed | MoveClosed
