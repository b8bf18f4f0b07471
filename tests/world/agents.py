"""The agents' side of the world's bus: reports as agents make them, when agents make them, through the wire format."""

from __future__ import annotations

from typing import NamedTuple

from falcon_agent.reporting.schedule import ReportSchedule
from falcon_core.wire.launcher.launch import LaunchStatus
from falcon_core.wire.measurement.check import CheckReport
from falcon_core.wire.measurement.probe import ProbeReport
from falcon_core.wire.reporting.groups import GroupReport
from falcon_core.wire.reporting.messages import Detection, Summary
from falcon_core.wire.reporting.reports import decode_summary, encode_summary


class _Turn(NamedTuple):
    """What an agent reports at once when it changes."""

    launch: LaunchStatus | None
    check: CheckReport | None
    smoke: CheckReport | None
    probe: ProbeReport | None
    groups: GroupReport | None
    ranks: tuple[tuple[int, str, bool, bool], ...]  # rank, tracking, whether in a slowdown, whether silent


class Voices:
    """The agents' voices, by pod uid."""

    def __init__(self) -> None:
        self.asked: frozenset[int] = frozenset()  # ranks of the operator's newest request
        self.reports = 0
        self.details = 0  # ranks that were reported in detail
        self._schedules: dict[str, tuple[ReportSchedule, _Turn]] = {}

    def report(self, summary: Summary, now: float, *, forgotten: bool) -> Summary | None:
        """Return the report as the operator reads it; None while the agent has nothing to say."""
        turn = _Turn(
            summary.launch,
            summary.check,
            summary.smoke,
            summary.probe,
            summary.groups,
            tuple(
                (rank.rank, rank.tracking, rank.onset is not None, _is_silent(rank.last_call_unix_ns, summary.unix_ns))
                for rank in summary.ranks
            ),
        )
        schedule, before = self._schedules.get(summary.pod_uid, (ReportSchedule("u"), None))
        self._schedules[summary.pod_uid] = (schedule, turn)
        detailed = schedule.detail_due(
            summary, asked=self.asked, detection=Detection(), urgent=forgotten or turn != before, now=now
        )
        if detailed is None:
            return None
        self.reports += 1
        self.details += len(detailed)
        return decode_summary(encode_summary(summary, detailed), summary.pod_uid)


def _is_silent(last_call_unix_ns: int | None, unix_ns: int) -> bool:
    return last_call_unix_ns is not None and unix_ns - last_call_unix_ns > 5_000_000_000  # the world's deadline
