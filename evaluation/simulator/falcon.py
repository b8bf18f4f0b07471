"""FALCON's runs at scale, and what bounds any answer to them: the length of the events, the price of the exchange.

The papers give neither depths nor times of their events, so one figure of ours beside one of theirs says little. Here
each run is repeated with all times (of the run, of onsets and durations) stretched by the same factor: the depths, the
share of slow time and so the unmitigated speed stay as they are, and only what is paid once an event weighs less. The
column *in hindsight* is what somebody could reach who knows all faults ahead, at the same prices: S2 exact at each
change at once, S3 at the onset, perfect, and only where it pays.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import numpy as np

from falcon_core.planning.goodput import removed_slowdown
from falcon_sim.cluster.machines import Machines
from falcon_sim.engine import Engine
from falcon_sim.job.model import JobModel
from falcon_sim.job.scenario import Faults, Scenario, SlowFault, load
from falcon_sim.policies import rungs

HERE = Path(__file__).parent
replace = msgspec.structs.replace
_AVERAGED = 16  # iterations


def stretched(scenario: Scenario, times: float) -> Scenario:
    """Return the same faults on a slower clock: the run, the onsets and the durations are ``times`` as long."""
    assert scenario.run.seconds is not None
    slow = [
        replace(fault, at_seconds=fault.at_seconds * times, duration_seconds=fault.duration_seconds * times)
        for fault in scenario.faults.slow
    ]
    return replace(scenario, run=replace(scenario.run, seconds=scenario.run.seconds * times), faults=Faults(slow=slow))


def priced(scenario: Scenario, exchange_seconds: float) -> Scenario:
    """Return the scenario with a standstill of S3 that lasts so long, and costs as much."""
    ladder = tuple(
        replace(strategy, overhead_seconds=exchange_seconds) if strategy.type == rungs.S3 else strategy
        for strategy in scenario.mitigation.strategies
    )
    cluster = scenario.cluster
    restoring = exchange_seconds - cluster.stop_seconds - cluster.start_seconds
    return replace(
        scenario,
        mitigation=replace(scenario.mitigation, strategies=ladder),
        cluster=replace(cluster, restore_seconds=restoring),
    )


def per_minute(scenario: Scenario, falcon: str) -> float:
    """Return the iterations a minute of a whole run."""
    mitigation = replace(scenario.mitigation, falcon=falcon)
    engine = Engine(replace(scenario, mitigation=mitigation))
    engine.run()
    return 60.0 * engine.timeline.useful / engine.now


class _Hindsight:
    """Iteration times under any set of the run's faults, shared evenly and at S2's best."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        quiet = replace(scenario.job, noise=0.0, transfer_noise=0.0, spikes=0.0)
        self._model = JobModel(quiet, np.random.default_rng(0))
        self._known: dict[tuple[SlowFault, ...], float] = {}

    def seconds(self, faults: tuple[SlowFault, ...]) -> float:
        if faults not in self._known:
            self._known[faults] = self._best(faults)
        return self._known[faults]

    def _best(self, faults: tuple[SlowFault, ...]) -> float:
        model, even = self._model, self._model.even
        lasting = [replace(fault, at_seconds=0.0, duration_seconds=1.0) for fault in faults]
        conditions = Machines(self._scenario, lasting).conditions(0.0, even)
        block = model.block(1, conditions)
        one_pass = (model.forward + model.backward) * model.job.microbatches
        times = (block.compute[0] * one_pass[:, None, None]).reshape(-1)
        plan = rungs.shares(model, dict(enumerate(times.tolist())), even)
        shared = plan is not None and model.block(1, replace(conditions, counts=plan.counts)).seconds[0]
        return min(float(block.seconds[0]), float(shared or np.inf))

    def per_minute(self, exchange_seconds: float, share_seconds: float) -> float:
        """Return the best over all choices of exchanges; a link that was exchanged away costs nothing from then on."""
        faults = self._scenario.faults.slow
        links = [fault for fault in faults if fault.kind == "Communication"]
        chosen = itertools.product((False, True), repeat=len(links))
        return max(
            self._made(
                [fault for fault in faults if fault not in links or not away[links.index(fault)]],
                sum(away) * exchange_seconds + share_seconds * (len(faults) - len(links)),
            )
            for away in chosen
        )

    def _made(self, faults: list[SlowFault], paused: float) -> float:
        until = self._scenario.run.seconds
        assert until is not None
        cuts = {0.0, until}
        for fault in faults:
            cuts |= {min(fault.at_seconds, until), min(fault.at_seconds + fault.duration_seconds, until)}
        made = 0.0
        for start, end in itertools.pairwise(sorted(cuts)):
            begun = [fault for fault in faults if fault.at_seconds <= start]
            there = tuple(fault for fault in begun if start < fault.at_seconds + fault.duration_seconds)
            made += (end - start) / self.seconds(there)
        return 60.0 * (made - paused / self.seconds(())) / until


def hindsight(scenario: Scenario) -> float:
    """Return iterations a minute of a planner that knows all faults ahead, at the scenario's prices."""
    prices = {strategy.type: strategy.overhead_seconds or 0.0 for strategy in scenario.mitigation.strategies}
    return _Hindsight(scenario).per_minute(prices[rungs.S3], prices[rungs.S2])


def table(name: str, cases: list[tuple[float, float | None]], seeds: range) -> list[str]:
    """Return Markdown rows: medians over seeds, and ranges; ``cases``: stretch, and S3's pause where it differs."""
    lines = [
        f"| {name}: times ×, S3 pauses | healthy | slow | with Falcon | ÷ slow | removed, by throughput | by time"
        " | in hindsight, by throughput |",
        "|---|---|---|---|---|---|---|---|",
    ]
    plain = load(HERE / f"{name}.yaml")
    pause = next(rung.overhead_seconds for rung in plain.mitigation.strategies if rung.type == rungs.S3)
    for stretch, own_pause in cases:
        scenario = stretched(plain, stretch) if own_pause is None else priced(stretched(plain, stretch), own_pause)
        rows = []
        for seed in seeds:
            drawn = replace(scenario, seed=seed)
            healthy = per_minute(replace(drawn, faults=Faults()), "FailStop")
            rows.append((healthy, per_minute(drawn, "FailStop"), per_minute(drawn, "All")))
        healthy, slow, mitigated = np.median(np.array(rows), axis=0).tolist()
        removed = [removed_slowdown(*row) for row in rows]
        by_time = np.median([removed_slowdown(*(1 / speed for speed in row)) for row in rows])
        spread = f" ({min(removed):.1%}–{max(removed):.1%})" if len(removed) > 1 else ""
        bound = removed_slowdown(healthy, slow, hindsight(scenario))
        lines.append(
            f"| × {stretch:g}, {own_pause or pause:g} s | {healthy:.1f} | {slow:.1f} | {mitigated:.1f}"
            f" | {mitigated / slow:.2f} × | {np.median(removed):.1%}{spread}"
            f" | {by_time:.1%} | {bound:.1%} |"
        )
    return lines
