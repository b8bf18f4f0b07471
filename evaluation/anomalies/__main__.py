"""How good are the forecasts of what runs out, and the comparisons of ranks?

    python -m evaluation.anomalies               # few seeds; printed only
    python -m evaluation.anomalies --check       # likewise, exit code 1 where a limit is missed: ten CPU minutes
    python -m evaluation.anomalies --full        # all seeds, into RESULTS.md: a quarter of an hour of CPU

Leaks must be forecast within a tenth of the time left when half of it has passed. Ranks with a fault must be named with
their metric. Healthy jobs must raise nothing.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from evaluation.anomalies.detection import cases, cost, days, weak
from evaluation.anomalies.faults import SURROUNDINGS
from evaluation.anomalies.healthy_jobs import HEALTHY_JOBS
from evaluation.anomalies.learned import learned
from evaluation.anomalies.real_runs import real_runs
from evaluation.anomalies.series import DAY, HEALTHY, HOUR, LEAKS, MINUTE, Floats, Leak, filling, healthy, leaking
from evaluation.anomalies.side_by_side import side_by_side
from evaluation.harness import Evaluation, Maker, Measure, Table, run
from evaluation.signals.markdown import table
from falcon_core.anomalies.forecast import Forecast, Watch

SEEDS: Final = 10  # of each leak, and again as many unseen ones
HEALTHY_DAYS: Final = 3  # of each kind, likewise
CASES: Final = 4  # of each fault of a whole job, and again as many unseen ones
DAYS: Final = 1  # of each kind of healthy job, likewise
MINUTE_OF_WINDOWS: Final = 6
ROUGH_SEEDS: Final = 3
ROUGH_DAYS: Final = 1
UNSEEN: Final = 200  # the first seed that was not looked at while the conditions of a forecast were chosen
MOST_ERROR: Final = 0.1
LOOK_SECONDS: Final = 20.0  # after half of the way: a forecast may be a window old
FILLED: Final = ((0.4, HOUR), (0.6, 10 * MINUTE), (0.6, HOUR), (0.8, HOUR))


class Look(NamedTuple):
    at: float
    forecast: Forecast | None


def looks(seconds: Floats, shares: Floats) -> list[Look]:
    """Return the forecast after each window of a series."""
    watch = Watch()
    samples = zip(seconds.tolist(), shares.tolist(), strict=True)
    return [Look(at, watch.forecast) for at, share in samples if watch.add(at, share, 1.0)]


class Found(NamedTuple):
    """What was forecast of one leak; shares are of its way from its begin to the limit."""

    first: float | None
    error: float | None  # of the time left, at half of the way
    contains: bool  # the range of that forecast
    false: int  # looks with a forecast before the leak began


def found(leak: Leak, seed: int) -> Found:
    played = looks(*leaking(leak, seed))
    end, half = leak.healthy + leak.lasts, leak.healthy + leak.lasts / 2
    said = [look.at for look in played if look.forecast is not None]
    first = next(((at - leak.healthy) / leak.lasts for at in said if at >= leak.healthy), None)
    at, forecast = next(look for look in played if look.at >= half + LOOK_SECONDS)
    early = sum(at < leak.healthy for at in said)
    if forecast is None:
        return Found(first, None, False, early)
    return Found(first, abs(forecast.at - end) / (end - at), forecast.earliest <= end <= forecast.latest, early)


def spells(played: Sequence[Look]) -> list[float]:
    """Return how long each spell of forecasts lasted, in seconds."""
    ends: list[float] = []
    began: float | None = None
    for at, forecast in played:
        if forecast is not None:
            began = at if began is None else began
        elif began is not None:
            ends.append(at - began)
            began = None
    return ends if began is None else [*ends, played[-1].at - began]


def leaks(seeds: int) -> Table:
    """Measure when leaks are forecast, and how exactly."""
    head = (
        "Leak",
        "forecast at half",
        "first forecast, share of the way: median (latest)",
        "error of the time left at half: median (worst)",
        "within 10 %",
        "likewise, unseen seeds",
        "limit reached within the range",
        "looks with a forecast before it began",
    )
    rows, measures = [], []
    for leak in LEAKS:
        each = [found(leak, seed) for seed in range(seeds)]
        unseen = [found(leak, seed) for seed in range(UNSEEN, UNSEEN + seeds)]
        rows.append(_leak_row(leak, each, unseen))
        within = (_exact(each) + _exact(unseen)) / (2 * seeds)
        early = sum(one.false for one in each + unseen)
        measures.append(Measure(f"leak, {leak.name}: forecast within 10 % at half", within, 1.0))
        measures.append(Measure(f"leak, {leak.name}: looks with a forecast before it", early, 0, most=True, form=".0f"))
    return Table(table(head, rows), measures)


def _leak_row(leak: Leak, each: Sequence[Found], unseen: Sequence[Found]) -> Sequence[object]:
    errors = [100 * one.error for one in each if one.error is not None]
    firsts = [one.first for one in each if one.first is not None]
    of = f"of {len(each)}"
    return (
        leak.name,
        f"{len(errors)} {of}",
        f"{statistics.median(firsts):.2f} ({max(firsts):.2f})" if firsts else "never",
        f"{statistics.median(errors):.1f} % ({max(errors):.1f} %)" if errors else "",
        f"{_exact(each)} {of}",
        f"{_exact(unseen)} {of}",
        f"{sum(one.contains for one in each)} {of}",
        sum(one.false for one in each),
    )


def _exact(each: Sequence[Found]) -> int:
    return sum(one.error is not None and one.error <= MOST_ERROR for one in each)


def healthy_jobs(days: int) -> Table:
    """Measure what healthy jobs raise, each seed for a day."""
    rows: list[Sequence[object]] = []
    measures = []
    for kind in HEALTHY:
        alarms, unseen = (
            sum(len(spells(looks(*healthy(kind, first + day, DAY)))) for day in range(days)) for first in (0, UNSEEN)
        )
        rows.append((kind, days, alarms, unseen))
        false = alarms + unseen
        measures.append(Measure(f"healthy, {kind}: forecasts in {2 * days} days", false, 0, most=True, form=".0f"))
    counts = [[int(str(row[at])) for row in rows] for at in (2, 3)]
    rows.append(("all", days * len(HEALTHY), *map(sum, counts)))
    head = ("Healthy job", "days", "forecasts", "forecasts in as many days of unseen seeds")
    return Table(table(head, rows), measures)


def fills(seeds: int) -> Table:
    """Measure caches that fill more of the room than a forecast waits for: a known weakness, without a limit."""
    rows: list[Sequence[object]] = []
    for share, lasts in FILLED:
        each = [spells(looks(*filling(share, lasts, seed))) for seed in range(seeds)]
        raised = [sum(spell) / 60 for spell in each if spell]
        rows.append(
            (
                f"{100 * share:.0f} % in {lasts / 60:.0f} min",
                f"{len(raised)} of {seeds}",
                f"{statistics.median(raised):.0f} min" if raised else "",
            )
        )
    head = ("A cache that fills so much of the room, and stops", "forecast", "stood for, median")
    return Table(table(head, rows))


TABLES: Final[Mapping[str, Maker]] = {
    "leaks": lambda options: leaks(SEEDS if options.full else ROUGH_SEEDS),
    "healthy": lambda options: healthy_jobs(HEALTHY_DAYS if options.full else ROUGH_DAYS),
    "cases": lambda options: cases(CASES, MINUTE_OF_WINDOWS),
    "weak": lambda options: weak(2 if options.full else 1, MINUTE_OF_WINDOWS),
    "days": lambda options: days(DAYS, 5 * MINUTE_OF_WINDOWS),
    "side by side": lambda options: side_by_side(1),
    "learned limits": lambda options: (
        learned(tuple(HEALTHY_JOBS), 2, DAYS) if options.full else learned(SURROUNDINGS, 1, 0)
    ),
    "real runs": lambda _: real_runs(),
    "cost": lambda options: cost(1024 if options.full else 64),
    "fills": lambda options: fills(SEEDS if options.full else ROUGH_SEEDS),
}
ANOMALIES: Final = Evaluation(
    name="anomalies",
    about=__doc__,
    code=("core/falcon_core/anomalies", "operator/falcon_anomaly", "evaluation/anomalies/*.py"),
    tables=TABLES,
    checked=("leaks", "healthy", "cases", "days", "learned limits", "real runs", "cost"),
    kept=tuple(TABLES),
)


if __name__ == "__main__":
    sys.exit(run(ANOMALIES))
