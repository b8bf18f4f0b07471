"""Show what a user wanted to see of a job's series (``kubectl falcon check --metrics``), for ten minutes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from falcon_core.recovery import Member
from falcon_core.text import clean, clip
from falcon_core.wire.overview import Overview, Row
from falcon_core.wire.verdicts import OF_THE_JOB
from falcon_operator.api.metrics_check import MetricsCheckStatus, SeriesMap, SeriesRow
from falcon_operator.base.ports import SeriesAnswer
from falcon_operator.base.time_format import timestamp, unix_seconds
from falcon_operator.status.view import View

SHOWN_SECONDS: Final = 600.0  # each write of the status carries the maps, for as long as they are in it
RESULT: Final = 1024
_LEAST_TRAINING_SECONDS: Final = 600  # from which on the anomaly service compares each metric
_BYTES: Final = ("memory", "memory_limit", "gpu_memory", "network_in", "network_out")
_SECONDS: Final = ("iteration", "computation", "wait")
_SHARES: Final = ("disk", "inodes", "cpu_throttled", "cpu_pressure", "memory_pressure", "io_pressure", "gpu_activity")
_RATES: Final = ("network_in", "network_out")
replace = msgspec.structs.replace


def metrics_check(view: View) -> MetricsCheckStatus | None:
    """Return the newest answer; None where no user has requested one."""
    before, answer = view.snap.job.status.metrics_check, view.snap.series
    if answer is not None:
        return _answered(view, answer)
    shows = before is not None and (before.maps or before.worst)
    if before is not None and shows and view.snap.now - unix_seconds(before.at) > SHOWN_SECONDS:
        return replace(before, maps=[], worst=[])
    return before


def _answered(view: View, answer: SeriesAnswer) -> MetricsCheckStatus:
    trouble, found = answer.trouble, answer.overview
    if found is not None and found.generation != view.intent.membership.generation:
        trouble = (
            "the series that the anomaly service holds are of an earlier start of the job; ask again in two minutes"
        )
    if found is None or trouble:
        return MetricsCheckStatus(
            asked=answer.asked, state="Failed", at=timestamp(answer.at), result=clip(clean(trouble), RESULT)
        )
    many = view.snap.job.spec.procs_per_replica
    members = {member.first_rank // many: member for member in view.intent.membership.members}
    return MetricsCheckStatus(
        asked=answer.asked,
        state="Done",
        at=timestamp(answer.at),
        column_seconds=found.column_seconds,
        worst=[_row(row, members.get(max(0, row.rank) // many), answer.at) for row in found.rows],
        maps=[SeriesMap(metric=clean(each.metric), ranks=each.ranks, rows=each.rows) for each in found.maps],
        result=_result(found),
    )


def _result(found: Overview) -> str:
    compared = f"{found.compared} of {found.metrics} metrics of {found.ranks} ranks compared"
    minutes = f"{found.seconds / 60:.0f} min"
    if not found.compared:
        return _nothing(found)
    lasting = [row for row in found.rows if row.verdict]
    others = len(found.rows) - len(lasting)
    more = f"; {_counted(others, 'further difference')} that led to no verdict" if others else ""
    return f"{compared} over the last {minutes}: {_counted(len(lasting), 'verdict')}{more}"


def _nothing(found: Overview) -> str:
    """Say why nothing was compared."""
    training = f"{found.training_seconds / 60:.0f} min of training"
    if found.ranks < 2:
        return f"nothing compared: there are series of {_counted(found.ranks, 'rank')}, and comparisons need two ranks"
    if found.training_seconds < _LEAST_TRAINING_SECONDS:
        return (
            f"nothing compared yet: there are {training}, and comparisons begin after ten minutes (after five minutes"
            " for error counters and pressure)"
        )
    return (
        f"nothing compared, though there are {training}: no metric has enough values of two ranks that are not mostly"
        " 0, or the service's two seconds of CPU time were used up first"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _row(row: Row, member: Member | None, at: float) -> SeriesRow:
    of_job = row.rank == OF_THE_JOB
    return SeriesRow(
        metric=clean(row.metric),
        rank=None if of_job else row.rank,
        node="" if of_job or member is None else member.node,
        verdict=clean(row.verdict),
        began=timestamp(at - row.began),
        ended=timestamp(at - row.ended) if row.ended else "",
        value=measured(row.metric, row.value),
        own=measured(row.metric, row.own),
        peers=measured(row.metric, row.peers),
        score=f"{min(row.score, 999.0):.1f}" if row.score else "",
    )


def measured(metric: str, value: float | None) -> str:
    """Return a metric's value with its unit, in at most 32 characters; "" where there is none."""
    if value is None:
        return ""
    kind = metric.partition(":")[0]
    if kind in _BYTES:
        return f"{_scaled(value)}{'/s' if kind in _RATES else ''}"
    if kind in _SECONDS:
        return f"{value * 1e3:.4g} ms" if abs(value) < 1 else f"{value:.4g} s"
    if kind in _SHARES:
        return f"{100 * value:.3g} %"
    return f"{value:.4g}{_UNITS.get(kind, '')}"


_UNITS: Final[Mapping[str, str]] = {"cpu": " cores", "retransmits": "/s", "nic_errors": "/s", "nic_congestion": "/s"}


def _scaled(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"
