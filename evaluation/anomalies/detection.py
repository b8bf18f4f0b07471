"""Play whole simulated jobs to the judge of the anomaly service: faults, healthy cases, healthy days, and the cost."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from evaluation.anomalies.faults import FAULTS, WHOLE, Case, faulty, without_fault
from evaluation.anomalies.healthy_jobs import HEALTHY_JOBS, healthy_job
from evaluation.anomalies.jobs import DAY, HOUR, MINUTE, Recording, series
from evaluation.harness import Measure, Table
from evaluation.signals.markdown import table
from falcon_anomaly.judge import State, Verdict, look
from falcon_anomaly.series.board import WINDOW_SECONDS

UNSEEN: Final = 300  # the first seed that was not looked at while thresholds were chosen
STRENGTHS: Final = (0.1, 0.25, 0.5)
WEAK_SEED: Final = 700
FIRST_LOOK: Final = 5 * MINUTE
BEFORE_FAULT: Final = 8 * MINUTE  # looks at a faulty job begin so long before its fault
SELDOM: Final = 5  # times as seldom as others come the looks before a fault, and after the right verdict
GOAL: Final = 0.95
COST_RANKS: Final = (64, 256, 1024)
MOST_SECONDS: Final = 3.0
MOST_MEMORY: Final = 250.0  # MiB


def _looks(case: Case, at: Sequence[int]) -> Iterator[tuple[int, list[Verdict]]]:
    """Yield the window and the verdicts of each look at a job, after so many windows."""
    recording = Recording(series(case.drivers), case.drivers.training)
    state = State()
    for windows in at:
        recording.show(windows)
        found, state = look(recording, state, recording.newest_seconds)
        yield windows, found


class Outcome(msgspec.Struct, frozen=True):
    """What was said of one case. A verdict is counted once, however long it stands."""

    seconds: float | None  # from the fault's begin to the first verdict on the right rank
    metric: bool  # whether that verdict names a metric that the fault changes first
    wrong: int  # verdicts on other ranks, or before the fault


def outcome(case: Case, each: int) -> Outcome:
    """Return what is said of a case, with a look each so many windows from the fault until the right verdict."""
    begin = case.drivers.windows if case.begin is None else case.begin
    seconds, metric, wrong = None, False, set[tuple[int | None, str, bool]]()
    first = FIRST_LOOK if case.begin is None else max(FIRST_LOOK, begin - BEFORE_FAULT)
    late = (begin + offset for offset in range(each, case.drivers.windows - begin + 1, each))
    times = [*range(first, begin, each * (SELDOM if case.begin is not None else 1)), begin, *late]
    recording, state = Recording(series(case.drivers), case.drivers.training), State()
    for number, at in enumerate(times):
        if seconds is not None and number % SELDOM and at != times[-1]:
            continue
        recording.show(at)
        found, state = look(recording, state, recording.newest_seconds)
        for one in found:
            if at <= begin or one.rank != case.rank:
                wrong.add((one.rank, one.kind, at <= begin))
            elif seconds is None:
                seconds, metric = (at - begin) * WINDOW_SECONDS, one.metric in case.metrics
    return Outcome(seconds, metric, len(wrong))


def cases(seeds: int, each: int) -> Table:
    """Measure precision and recall over faulty and healthy jobs; as many seeds again were not looked at before."""
    rows: list[Sequence[object]] = []
    seen, unseen = list[Outcome](), list[Outcome]()
    for name in FAULTS:
        first, second = ([outcome(faulty(name, begin + at), each) for at in range(seeds)] for begin in (0, UNSEEN))
        rows.append(_fault_row(name, first, second))
        seen += first
        unseen += second
    quiet, quiet_unseen = (
        [
            outcome(without_fault(kind, begin + at), 3 * each)
            for kind in HEALTHY_JOBS
            for at in range(max(1, seeds // 2))
        ]
        for begin in (0, UNSEEN)
    )
    rows.append(
        _fault_row(f"none: {len(HEALTHY_JOBS)} kinds of healthy jobs, 2 h each", quiet, quiet_unseen, faulty=False)
    )
    measures = [*_measures("", seen, quiet), *_measures(", unseen seeds", unseen, quiet_unseen)]
    sums = (*_sums(seen)[:2], _sums(seen + quiet)[2], *_sums(unseen)[:2], _sums(unseen + quiet_unseen)[2])
    rows.append(("all", *sums, ""))
    head = (
        "Fault",
        *(f"{what}{where}" for where in ("", ", unseen") for what in ("found", "metric right", "wrong verdicts")),
        "seconds to the verdict: median (latest)",
    )
    total = len(seen) + len(quiet) + len(unseen) + len(quiet_unseen)
    seconds = each * WINDOW_SECONDS
    text = f"{total} cases, a look each {seconds:.0f} s (healthy ones: each {3 * seconds:.0f} s).\n\n"
    limits = table(("Of all", "measured"), [(one.what, f"{one.value:.3f}") for one in measures])
    return Table(f"{text}{table(head, rows)}\n\n{limits}", measures)


def _fault_row(name: str, seen: Sequence[Outcome], unseen: Sequence[Outcome], faulty: bool = True) -> Sequence[object]:
    times = [one.seconds for one in (*seen, *unseen) if one.seconds is not None]
    shown = f"{statistics.median(times):.0f} ({max(times):.0f})" if times else ""
    if faulty:
        return (name, *_sums(seen), *_sums(unseen), shown)
    return (name, "", "", _sums(seen)[2], "", "", _sums(unseen)[2], "")


def _sums(each: Sequence[Outcome]) -> tuple[object, ...]:
    found = sum(one.seconds is not None for one in each)
    return f"{found} of {len(each)}", sum(one.metric for one in each), sum(one.wrong for one in each)


def _measures(where: str, each: Sequence[Outcome], quiet: Sequence[Outcome]) -> list[Measure]:
    found = sum(one.seconds is not None for one in each)
    wrong = sum(one.wrong for one in (*each, *quiet))
    return [
        Measure(f"recall{where}", found / len(each), GOAL, form=".3f"),
        Measure(f"precision{where}", found / max(1, found + wrong), GOAL, form=".3f"),
        Measure(f"right metric{where}", sum(one.metric for one in each) / max(1, found), GOAL, form=".3f"),
    ]


def weak(seeds: int, each: int) -> Table:
    """Measure how weak faults may be: shares of their effect in ``faults.py``. A known weakness, without a limit."""
    rows = []
    for name in (name for name in FAULTS if name not in WHOLE):
        found = []
        for strength in STRENGTHS:
            outcomes = [outcome(faulty(name, WEAK_SEED + at, strength), each) for at in range(seeds)]
            found.append(f"{sum(one.seconds is not None for one in outcomes)} of {seeds}")
        rows.append((name, *found))
    return Table(table(("Fault", *(f"{strength:.0%} of its effect" for strength in STRENGTHS)), rows))


def days(seeds: int, each: int) -> Table:
    """Measure what healthy jobs raise in a day; as many seeds again were not looked at before."""
    rows: list[Sequence[object]] = []
    measures, sums = [], [0, 0]
    for kind in HEALTHY_JOBS:
        alarms, unseen = (sum(alarms_of_day(kind, begin + at, each) for at in range(seeds)) for begin in (0, UNSEEN))
        rows.append((kind, seeds, alarms, unseen))
        sums = [sums[0] + alarms, sums[1] + unseen]
        what = f"healthy, {kind}: false alarms in {2 * seeds} days"
        measures.append(Measure(what, alarms + unseen, 0, most=True, form=".0f"))
    rows.append(("all", seeds * len(HEALTHY_JOBS), *sums))
    text = f"A look each {each * WINDOW_SECONDS / 60:.0f} minutes.\n\n"
    head = ("Healthy job", "days", "false alarms", "false alarms in as many days of unseen seeds")
    return Table(f"{text}{table(head, rows)}", measures)


def alarms_of_day(kind: str, seed: int, each: int) -> int:
    """Return how many verdicts a healthy job raises in a day, each counted once as long as it stands."""
    alarms, before = 0, set[tuple[int | None, str, str]]()
    day = Case(kind, healthy_job(kind, seed, DAY), None, None, ())
    for _, found in _looks(day, range(FIRST_LOOK, DAY + 1, each)):
        standing = {(one.rank, one.kind, one.metric) for one in found}
        alarms += len(standing - before)
        before = standing
    return alarms


_COST: Final = """
import resource, sys, time
from evaluation.anomalies.jobs import HOUR, drivers, random_of, series
from falcon_anomaly.judge import State, look
from falcon_anomaly.series.board import Board, Phase

ranks, metrics = int(sys.argv[1]), int(sys.argv[2])
board, random = Board(ranks), random_of("cost", ranks)
board.set_phase(0.0, 10.0 * board.windows, Phase.TRAINING)
names = list(series(drivers(random, 2, 2)))[:metrics]
names += [f"number {at}" for at in range(metrics - len(names))]
for first in range(0, ranks, 32):
    found = series(drivers(random, min(32, ranks - first), board.windows))
    found |= {name: found["cpu"] + at for at, name in enumerate(names) if name.startswith("number")}
    for rank in range(len(found["cpu"])):
        for window in range(board.windows):
            values = {name: (float(found[name][rank, window]),) * 3 for name in names}
            board.add(first + rank, 10.0 * (window + 1), values)
empty = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
times, state = [], State()
for _ in range(5):
    begun = time.process_time()
    _, state = look(board, state, board.newest_seconds)
    times.append(time.process_time() - begun)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(sorted(times)[2], peak, board.byte_size / (1 << 20), board.windows)
"""


def cost(most_ranks: int) -> Table:
    """Measure a look's CPU time and the process's memory, each size in a process of its own."""
    rows, measures = [], []
    for ranks in (ranks for ranks in COST_RANKS if ranks <= most_ranks):
        command = [sys.executable, "-c", _COST, str(ranks), "20"]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        seconds, peak, board, windows = map(float, printed)
        rows.append((ranks, 20, f"{windows / HOUR:.1f} h", f"{board:.0f} MiB", f"{seconds:.2f} s", f"{peak:.0f} MiB"))
        if ranks == COST_RANKS[0]:
            measures += [
                Measure("a look at 64 ranks and 20 metrics: CPU seconds", seconds, MOST_SECONDS, most=True, form=".2f"),
                Measure("likewise: memory of the process, MiB", peak, MOST_MEMORY, most=True, form=".0f"),
            ]
    head = ("Ranks", "metrics", "history", "board", "a look, CPU", "peak of the process")
    return Table(table(head, rows), measures)
