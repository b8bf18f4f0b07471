"""Micro-batches of a rank that is well only while it has fewer: they go back and forth ever less often."""

from __future__ import annotations

import pytest

from falcon_core.recovery import machine
from falcon_core.recovery.model.observation import Look
from falcon_core.recovery.model.state import Levels, RecoveryState
from falcon_core.wire.reporting.messages import Onset
from falcon_core.wire.reporting.microbatches import MicroShare
from tests.unit.recovery.seen import NOW, POLICY, member, rank, replace, seen

ALIKE = [4, 4, 4]
ITERATIONS = 300


class Heating:
    """A job whose rank 2 takes twice as long while it has had its even share for so many seconds."""

    def __init__(self, iteration_seconds: float, heats_seconds: float) -> None:
        self.micro = iteration_seconds / 5  # of 4 micro-batches, and the rest of the iteration is one more
        self.healthy_ns = round(iteration_seconds * 1e9)
        self.policy = replace(POLICY, world_size=3, strategies=[("Ignore", None), ("AdjustMicrobatches", None)])
        self.state, self.now, self.heats_seconds = (
            RecoveryState(levels=Levels(healthy_ns=self.healthy_ns)),
            NOW,
            heats_seconds,
        )
        self.shares, self.since = ALIKE, NOW
        self.times, self.computed = [self.healthy_ns] * 16, [[self.healthy_ns * 4 // 5] * 16 for _ in ALIKE]
        self.onset: Onset | None = None
        self.changes, self.slow = 0, 0

    def run(self, iterations: int = ITERATIONS) -> None:
        for iteration in range(201, 201 + iterations):
            self._train(iteration)

    def _train(self, iteration: int) -> None:
        hot = self.shares == ALIKE and self.now - self.since >= self.heats_seconds
        micros = [self.micro, self.micro, self.micro * (2 if hot else 1)]
        took = max(share * micro for share, micro in zip(self.shares, micros, strict=True)) + self.micro
        self.slow += took > 1.1 * self.healthy_ns / 1e9 and self.shares == ALIKE
        self.now += took
        self.times = [*self.times[1:], round(took * 1e9)]
        self.computed = [[*own[1:], round(4 * micro * 1e9)] for own, micro in zip(self.computed, micros, strict=True)]
        self._look_for_an_onset(iteration)
        ranks = [
            rank(
                number,
                iterations=iteration,
                iteration_ns=self.times,
                compute_ns=self.computed[number],
                healthy_compute_ns=self.healthy_ns * 4 // 5,
                healthy_iteration_ns=self.healthy_ns,
                onset=self.onset,
                micro=MicroShare(per_rank=4, share=self.shares[number], micro_ns=round(micros[number] * 1e9)),
            )
            for number in range(3)
        ]
        obs = replace(seen(), now=self.now, members=[member(number) for number in range(3)], ranks=ranks)
        self.state = machine.step(self.state, Look(obs, self.policy)).state
        sharing = self.state.sharing
        if sharing is not None and sharing.shares != self.shares:
            self.shares, self.since, self.changes = list(sharing.shares), self.now, self.changes + 1

    def _look_for_an_onset(self, iteration: int) -> None:
        slow = [time > 1.1 * self.healthy_ns for time in self.times[-5:]]
        if all(slow) and self.shares == ALIKE and self.onset is None:
            self.onset = Onset(
                iteration=iteration - 4,
                unix_ns=round((self.now - sum(self.times[-5:]) / 1e9) * 1e9),
                reported_iteration=iteration,
                before_ns=self.healthy_ns,
                after_ns=self.times[-1],
            )
        elif not any(slow):
            self.onset = None


@pytest.mark.parametrize("heats_seconds", [0.0, 60.0, 120.0])
@pytest.mark.parametrize("iteration_seconds", [0.5, 2.0, 10.0, 20.0])
def test_micro_batches_go_back_and_forth_ever_less_often(iteration_seconds: float, heats_seconds: float) -> None:
    job = Heating(iteration_seconds, heats_seconds)
    job.run()
    assert job.changes <= 14
    assert job.slow <= ITERATIONS / 4


@pytest.mark.parametrize(("iteration_seconds", "heats_seconds"), [(10.0, 400.0), (20.0, 600.0), (20.0, 2000.0)])
def test_a_device_that_takes_minutes_to_heat_up_is_no_other_slowdown_each_time(
    iteration_seconds: float, heats_seconds: float
) -> None:
    job = Heating(iteration_seconds, heats_seconds)
    job.run(900)
    assert job.changes <= 19, "nine rounds, of which each is held for twice as long as the last"
    assert job.slow <= 900 / 10
