"""Schedules: against the closed forms, and each pass after what it waits for."""

from __future__ import annotations

import numpy as np
import pytest

from falcon_sim.job.pipeline import Floats, Pass, Schedule, ScheduleError, interleaved, one_f_one_b, play

F, B = 0.1, 0.2


def _seconds(schedule: Schedule, transfer: float = 0.0) -> float:
    chunk = schedule.chunks

    def spent(work: Pass) -> Floats:
        return np.full(1, (F if work.forward else B) / chunk)

    played = play(schedule, spent, lambda _source, _work: np.full(1, transfer))
    return max(float(end[0]) for end in played.ends)


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (1, 8), (2, 2), (4, 2), (4, 16), (8, 64)])
def test_one_f_one_b_takes_what_the_closed_form_says(stages: int, microbatches: int) -> None:
    expected = (microbatches + stages - 1) * (F + B)
    assert _seconds(one_f_one_b(stages, microbatches)) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("stages", "chunks", "microbatches"), [(2, 2, 4), (4, 2, 8), (4, 4, 16), (8, 2, 64)])
def test_interleaving_divides_the_bubble_by_the_chunks(stages: int, chunks: int, microbatches: int) -> None:
    expected = (microbatches + (stages - 1) / chunks) * (F + B)
    assert _seconds(interleaved(stages, chunks, microbatches)) == pytest.approx(expected, rel=0.01)


def test_a_transfer_delays_the_filling_and_the_draining() -> None:
    schedule = one_f_one_b(4, 1)
    assert _seconds(schedule, transfer=0.05) == pytest.approx(4 * (F + B) + 6 * 0.05)


@pytest.mark.parametrize("schedule", [one_f_one_b(4, 6), interleaved(4, 3, 8)])
def test_every_pass_is_made_once_and_after_its_source(schedule: Schedule) -> None:
    made = [step.work for step in schedule.steps]
    assert len(set(made)) == len(made) == 2 * schedule.stages * schedule.chunks * schedule.microbatches
    for index, step in enumerate(schedule.steps):
        assert step.source < index
        assert step.before < index
        if step.source >= 0:
            assert made[step.source].microbatch == step.work.microbatch


def test_replicas_in_lockstep_wait_for_the_slowest_of_their_group() -> None:
    factors = np.array([1.0, 2.0, 1.0, 1.0])
    played = play(
        one_f_one_b(2, 4), lambda work: factors * (F if work.forward else B), lambda _s, _w: np.zeros(4), lockstep=2
    )
    ends = np.max(played.ends, axis=0)
    assert ends[0] == ends[1] == pytest.approx(2 * ends[2])


def test_interleaving_needs_whole_rounds_of_microbatches() -> None:
    with pytest.raises(ScheduleError, match="6 micro-batches are no multiple of 4 stages"):
        interleaved(4, 2, 6)
