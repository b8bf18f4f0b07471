"""Acting before the price is reached: what a memory of durations saves and costs, with λ on and off.

Each seed draws one job's slowdowns, one after the other. The job decides with ``recovery.history.durations`` and
``planning.ski_rental`` as the operator does. What Falcon ended by its action, the job remembers as censored. The
clairvoyant pays the lesser of the whole loss and the price.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from benchmarks.planning.measure import table
from falcon_core.model import Cause
from falcon_core.planning.ski_rental import Candidate, Loss, due
from falcon_core.recovery.history import durations
from falcon_core.recovery.model.slowdown import Culprit, IterationTimes, SlowdownOnset, SlowIncident
from falcon_core.recovery.model.state import RecoveryState

Draw = Callable[[np.random.Generator, int], float]  # the duration [s] of the job's slowdown number n
SEEDS = 100
SLOWDOWNS = 40
PRICE_SECONDS = 300.0
STEP_SECONDS = 10.0  # between two looks
TWICE = (1_000_000_000, 2_000_000_000)  # healthy and slow iteration time: half of each second is lost
replace = msgspec.structs.replace


def _turning(_: np.random.Generator, number: int) -> float:
    """Return hours while the job learns; from then on each ends right after an early action."""
    return 7200.0 if number < SLOWDOWNS // 2 else PRICE_SECONDS + 2 * STEP_SECONDS


KINDS: dict[str, Draw] = {
    "exponential, mean 10 min (slow computation, FALCON §3.2)": lambda drawn, _: float(drawn.exponential(600.0)),
    "exponential, mean 24 min (slow links, FALCON §3.3)": lambda drawn, _: float(drawn.exponential(1440.0)),
    "exponential, mean 72 min (512 to 1 024 GPUs, FALCON §3.4)": lambda drawn, _: float(drawn.exponential(4320.0)),
    "log-normal, median 5 min, σ 1.5": lambda drawn, _: float(drawn.lognormal(np.log(300.0), 1.5)),
    "blips of 1 min, one in four lasts 72 min": lambda drawn, _: 60.0 if drawn.random() < 0.75 else 4320.0,
    "always 4 min": lambda _drawn, _: 240.0,
    "long at first, then just past an early action": _turning,
}


def _slow() -> SlowIncident:
    culprit = Culprit(
        rank=0, replica=0, pod_name="a", node="n", slowdown=2.0, compute_ns=2, peers_compute_ns=1, cause=Cause.UNKNOWN
    )
    healthy_ns, slow_ns = TWICE
    return SlowIncident(
        id="a-1",
        phase="Located",
        onset=SlowdownOnset(at=0.0, generation=1, iteration=1, reported_iteration=1),
        times=IterationTimes(healthy_ns=healthy_ns, slow_ns=slow_ns),
        loss=Loss(),
        subject=culprit,
    )


def _endured(state: RecoveryState, lasts: float, *, early: bool) -> tuple[RecoveryState, float]:
    """Return the state after one slowdown, and what it cost [s]."""
    slow, plain = _slow(), Candidate(name="ReplaceNode", overhead_seconds=PRICE_SECONDS)
    rate = 1.0 - slow.times.healthy_ns / slow.times.slow_ns
    now = 0.0
    while now < lasts:
        action = durations.early(plain, state, slow, now) if early else plain
        if due(action, Loss(seconds=now * rate)):
            return durations.cut_short(state, slow, now), now * rate + PRICE_SECONDS
        now += STEP_SECONDS
    return durations.passed(state, slow, lasts), lasts * rate


def _job(draw: Draw, seed: int, *, early: bool) -> tuple[float, float, float]:
    """Return a job's cost as a share of the clairvoyant's, that of its worst slowdown, and its cost [s]."""
    drawn, state = np.random.default_rng(seed), RecoveryState()
    healthy_ns, slow_ns = TWICE
    cost = best = worst = 0.0
    for number in range(SLOWDOWNS):
        lasts = max(STEP_SECONDS, draw(drawn, number))
        state, paid = _endured(state, lasts, early=early)
        least = min(lasts * (1.0 - healthy_ns / slow_ns), PRICE_SECONDS)
        cost, best, worst = cost + paid, best + least, max(worst, paid / least)
    return cost / best, worst, cost


def comparison() -> str:
    """Return the table: 100 jobs of 40 slowdowns of each kind, without and with the memory."""
    rows: list[list[object]] = []
    for name, draw in KINDS.items():
        off = np.array([_job(draw, seed, early=False) for seed in range(SEEDS)])
        on = np.array([_job(draw, seed, early=True) for seed in range(SEEDS)])
        rows.append(
            [
                name,
                off[:, 0].mean(),
                on[:, 0].mean(),
                off[:, 0].max(),
                on[:, 0].max(),
                off[:, 1].max(),
                on[:, 1].max(),
                int((on[:, 2] > off[:, 2]).sum()),
            ]
        )
    columns = ["durations", "mean, off", "mean, on", "worst job, off", "worst job, on"]
    columns += ["worst slowdown, off", "worst slowdown, on", f"jobs of {SEEDS} that lose by it"]
    return table("Acting early (× the clairvoyant's cost)", columns, rows)
