"""A rank that differs from its peers is named with its metric; what all ranks do, and what passes, is not."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from evaluation.anomalies.faults import FAULTS, Spot
from evaluation.anomalies.jobs import HOUR, MINUTE, Drivers, Recording, drivers, random_of, series
from falcon_anomaly.detectors.peers import Limit
from falcon_anomaly.judge import Kind, State, Verdict, look
from falcon_anomaly.series.board import WINDOW_SECONDS, Board, Phase

Array = npt.NDArray[Any]
BEGIN = 30 * MINUTE


def job(ranks: int = 6, windows: int = 50 * MINUTE, seed: int = 1) -> Drivers:
    return drivers(random_of("test", seed), ranks, windows)


def verdicts(of: Drivers, at: int | None = None) -> list[Verdict]:
    """Return what one look at a job's windows finds."""
    recording = Recording(series(of), of.training)
    recording.show(at or of.windows)
    return look(recording, State(), recording.newest_seconds)[0]


def between(of: Drivers, first: int, last: int) -> npt.NDArray[np.bool_]:
    times = np.arange(of.windows)
    return (times >= first) & (times < last)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_rank_and_metric(name: str) -> None:
    put, metrics, of_rank = FAULTS[name]
    faulty = job()
    times = np.arange(faulty.windows)
    put(faulty, Spot(2, times >= BEGIN, np.maximum(times - BEGIN, 0) / MINUTE))
    assert verdicts(faulty, BEGIN) == []
    found = verdicts(faulty)
    assert [one.rank for one in found] == [2 if of_rank else None]
    assert found[0].metric in metrics


def test_a_verdict_says_since_when_and_how_far_the_rank_is_from_its_peers_and_from_itself() -> None:
    slow = job()
    slow.slow[4] *= 1 + 0.4 * between(slow, BEGIN, slow.windows)
    (found,) = verdicts(slow)
    assert (found.rank, found.metric, found.kind) == (4, "computation", Kind.DIFFERS)
    assert found.since_seconds_ago == pytest.approx((slow.windows - BEGIN) * 10, abs=20)
    assert found.value == pytest.approx(0.7, rel=0.1)
    assert found.peers == pytest.approx(0.5, rel=0.1)
    assert found.own == pytest.approx(0.5, rel=0.1)
    assert found.peers_score > 1
    assert "wait" in found.also


def test_a_tenth_more_computation_is_no_verdict_though_it_leaves_a_sixth_of_a_short_wait() -> None:
    wandered = job()
    wandered.link = 0.2 * wandered.link
    wandered.slow[4] *= 1 + 0.1 * between(wandered, BEGIN, wandered.windows)
    waits = series(wandered)["wait"][:, -20:]
    assert 6 * np.median(waits[4]) < np.median(np.delete(waits, 4, axis=0))
    assert verdicts(wandered) == []


def test_a_number_that_is_mostly_zero_has_no_scale_and_names_no_rank() -> None:
    board = Board(3)
    board.set_phase(0.0, 10.0 * board.windows, Phase.TRAINING)
    for window in range(board.windows):
        for rank in range(3):
            value = 5.0 if rank == 1 and window >= board.windows - 3 * MINUTE else 0.0
            board.add(rank, 10.0 * (window + 1), {"output:skipped": (value,) * 3})
    with np.errstate(all="raise"):
        assert look(board, State(), 10.0 * board.windows)[0] == []


def test_what_all_ranks_do_together_says_nothing_about_a_rank() -> None:
    together = job()
    on = between(together, BEGIN, together.windows)
    together.slow *= 1 + 3 * on
    together.memory += 20 * on
    together.pressure += 0.5 * on
    assert verdicts(together) == []


def test_a_job_that_sleeps_raises_nothing() -> None:
    asleep = job()
    asleep.active = np.where(between(asleep, BEGIN, asleep.windows), 0.0, 1.0)[None]
    assert verdicts(asleep) == []


def test_half_of_the_ranks_are_a_part_of_the_job_and_no_anomaly() -> None:
    halves = job(8)
    halves.memory[::2] += 20 * between(halves, BEGIN, halves.windows)
    assert verdicts(halves) == []


def test_what_passes_within_ninety_seconds_is_left_alone() -> None:
    short = job()
    short.throttled[3] += 0.8 * between(short, short.windows - 8, short.windows)
    assert verdicts(short) == []


def test_of_two_ranks_the_one_that_left_its_own_past_is_named() -> None:
    two = job(2)
    two.throttled[1] += 0.5 * between(two, BEGIN, two.windows)
    (found,) = verdicts(two)
    assert (found.rank, found.metric) == (1, "cpu_throttled")


def test_a_machine_that_was_bad_from_the_start_is_named_and_a_rank_that_has_another_part_is_not() -> None:
    job_of_parts = job()
    job_of_parts.memory[0] += 25
    job_of_parts.threads[0] += 100
    job_of_parts.retransmits[5] += 40
    (found,) = verdicts(job_of_parts)
    assert (found.rank, found.metric) == (5, "retransmits")


def test_packets_sent_twice_from_the_start_are_a_trait_where_the_ranks_hardly_wait() -> None:
    free = job()
    free.link = 0.2 * free.link
    free.slow[:] = 1.0
    free.retransmits[5] += free.random.choice([22.0, 38.0], free.windows)
    held_up = msgspec.structs.replace(free, link=free.link + 0.1, random=random_of("test", 2))
    assert [verdicts(free, at) for at in range(5 * MINUTE, free.windows, 5 * MINUTE)] == [[]] * 9
    (found,) = verdicts(held_up)
    assert (found.rank, found.metric) == (5, "retransmits")


def test_a_rank_with_a_trait_is_named_when_it_goes_beyond_it_and_not_when_others_hold_up_the_job() -> None:
    worse, other = (job(seed=seed) for seed in (3, 4))
    for each in (worse, other):
        each.link = 0.2 * each.link
        each.slow[:] = 1.0
        each.retransmits[5] += 30 + each.random.normal(0, 3, each.windows)
    worse.retransmits[5] += 60 * between(worse, BEGIN, worse.windows)
    other.link[1] += 0.5 * between(other, BEGIN, other.windows)
    (found,) = verdicts(worse)
    assert (found.rank, found.metric) == (5, "retransmits")
    assert verdicts(other) == []


def test_errors_of_a_gpus_memory_are_no_trait_though_the_ranks_hardly_wait() -> None:
    free = job()
    free.link = 0.2 * free.link
    free.slow[:] = 1.0
    free.ecc[2] += 5
    (found,) = verdicts(free)
    assert (found.rank, found.metric) == (2, "gpu_ecc")


def activity(moved: Mapping[int, float]) -> Board:
    """Return a board of four ranks whose GPUs are busy for 0.8 of the time, and since five minutes for other shares."""
    board, random = Board(4), random_of("activity", 1)
    board.set_phase(0.0, 10.0 * board.windows, Phase.TRAINING)
    for window in range(board.windows):
        for rank in range(4):
            value = moved.get(rank, 0.8) if window >= board.windows - 5 * MINUTE else 0.8
            board.add(rank, 10.0 * (window + 1), {"gpu_activity": (value + random.normal(0, 0.01),) * 3})
    return board


def test_an_effect_that_comes_from_what_the_peers_do_names_no_rank() -> None:
    stayed = activity({0: 0.6, 1: 0.6, 2: 0.6})
    left = activity({3: 0.6})
    assert look(stayed, State(), stayed.newest_seconds)[0] == []
    (found,) = look(left, State(), left.newest_seconds)[0]
    assert (found.rank, found.metric) == (3, "gpu_activity")


def test_phases_that_are_marked_are_neither_judged_nor_learned_from() -> None:
    marked = job()
    off = between(marked, BEGIN, BEGIN + 5 * MINUTE)
    marked.training &= ~off
    marked.throttled[3] += 0.9 * off
    for at in range(BEGIN, marked.windows, 6):
        assert verdicts(marked, at) == []


def test_a_verdict_stands_until_the_rank_is_as_before_though_it_lasts_longer_than_the_history() -> None:
    long = job(windows=6 * HOUR)
    long.slow[1] *= 1 + 0.4 * between(long, HOUR, 5 * HOUR)
    recording = Recording(series(long), long.training)
    state, named = State(), list[bool]()
    for at in range(HOUR // 2, long.windows, 12):
        recording.show(at)
        found, state = look(recording, state, recording.newest_seconds)
        assert {one.rank for one in found} <= {1}
        named.append(bool(found))
        if HOUR + 5 * MINUTE < at < 5 * HOUR:
            assert found[0].since_seconds_ago == pytest.approx((at - HOUR) * 10, abs=20)
    begin, end = named.index(True), len(named) - named[::-1].index(True)
    assert all(named[begin:end])
    assert HOUR // 2 + 12 * begin <= HOUR + 4 * MINUTE
    assert 5 * HOUR <= HOUR // 2 + 12 * end <= 5 * HOUR + 6 * MINUTE


def labels(of: Drivers, limits: Mapping[str, Limit], *looks: int) -> list[list[bool]]:
    """Return of each look, whether learned limits alone have raised its verdicts."""
    recording, state, found = Recording(series(of), of.training), State(), list[list[bool]]()
    for at in looks:
        recording.show(at)
        seen, state = look(recording, state, recording.newest_seconds, limits)
        assert {one.rank for one in seen} == {2}
        found.append([one.learned_alone for one in seen])
    return found


def grown(floors: float, end: int) -> Drivers:
    """Return a job whose rank 2 has so many times the floor of memory more, until ``end``."""
    grows = job()
    grows.memory[2] *= np.exp(0.2 * floors * between(grows, BEGIN, end))
    return grows


def test_a_verdict_of_the_shipped_limits_that_falls_below_them_is_none_of_learned_limits() -> None:
    falls = grown(5.2, BEGIN + 8 * MINUTE)
    falls.memory[2] *= np.exp(0.2 * 1.4 * between(falls, BEGIN + 8 * MINUTE, falls.windows))
    looks = BEGIN + 6 * MINUTE, BEGIN + 14 * MINUTE
    assert labels(falls, {}, *looks) == [[False], [False]]
    assert labels(falls, {"memory": Limit(0.5, 0.5)}, *looks) == [[False], [False]]


@pytest.mark.parametrize(("floors", "learned_alone"), [(5.2, False), (0.8, True)])
def test_a_pause_does_not_change_what_has_raised_a_verdict(floors: float, learned_alone: bool) -> None:
    paused = grown(floors, BEGIN + 20 * MINUTE)
    paused.training[BEGIN + 6 * MINUTE :] = False
    limits = {"memory": Limit(0.5, 0.5)} if learned_alone else {}
    assert labels(paused, limits, BEGIN + 6 * MINUTE, paused.windows) == [[learned_alone]] * 2


def test_learned_limits_have_not_raised_alone_what_grows_beyond_the_shipped_ones() -> None:
    grows = grown(0.8, BEGIN + 6 * MINUTE)
    grows.memory[2] *= np.exp(0.2 * 5.2 * between(grows, BEGIN + 6 * MINUTE, BEGIN + 12 * MINUTE))
    grows.memory[2] *= np.exp(0.2 * 0.8 * between(grows, BEGIN + 12 * MINUTE, grows.windows))
    looks = (BEGIN + minutes * MINUTE for minutes in (5, 11, 17))
    assert labels(grows, {"memory": Limit(0.5, 0.5)}, *looks) == [[True], [False], [False]]


def test_an_agent_that_falls_silent_as_a_whole_is_no_silent_metric() -> None:
    quiet = job()
    quiet.arrived[2] &= ~between(quiet, BEGIN, quiet.windows)
    assert verdicts(quiet) == []


def test_a_metric_that_ends_for_all_ranks_is_not_silent() -> None:
    ended = job()
    gone = np.zeros((ended.ranks, ended.windows), np.bool_)
    gone[:] = between(ended, BEGIN, ended.windows)
    ended.missing["gpu_power"] = gone
    assert verdicts(ended) == []


def test_errors_that_all_ranks_log_and_a_single_burst_raise_nothing() -> None:
    noisy = job()
    noisy.error_lines += 3.0 * between(noisy, BEGIN, noisy.windows)
    noisy.error_lines[1] += 200.0 * between(noisy, noisy.windows - 6, noisy.windows - 4)
    assert verdicts(noisy) == []


def test_a_rank_that_goes_on_to_log_errors_stays_named_until_it_stops() -> None:
    """Its own past soon holds the errors, and is no excuse for them."""
    noisy = job(windows=120 * MINUTE)
    ends = 110 * MINUTE
    noisy.error_lines[1] += 0.5 * between(noisy, BEGIN, ends)
    recording, state, named = Recording(series(noisy), noisy.training), State(), list[int]()
    for at in range(BEGIN, noisy.windows + 1, 3 * MINUTE):
        recording.show(at)
        found, state = look(recording, state, recording.newest_seconds)
        if any(each.kind == Kind.ERRORS for each in found):
            named.append(at)
    assert named[0] <= BEGIN + 6 * MINUTE
    assert ends <= named[-1] <= ends + 5 * MINUTE
    assert len(named) == (named[-1] - named[0]) // (3 * MINUTE) + 1, "never withdrawn in between"


def test_of_two_ranks_the_one_that_logs_errors_is_named() -> None:
    two = job(2)
    two.error_lines[1] += 1.0 * between(two, BEGIN, two.windows)
    (found,) = verdicts(two)
    assert (found.rank, found.kind) == (1, Kind.ERRORS)


def test_an_excess_of_what_is_near_zero_is_named_within_the_first_minutes() -> None:
    young = job(windows=6 * MINUTE)
    young.throttled[1] += 0.5
    (found,) = verdicts(young)
    assert (found.rank, found.metric) == (1, "cpu_throttled")


def test_a_class_of_errors_is_named_with_the_lines_of_its_rank() -> None:
    noisy = job()
    noisy.error_lines[3] += 2.0 * between(noisy, BEGIN, noisy.windows)
    found = series(noisy)
    found["error_lines:NCCL"] = found["error_lines"]
    recording = Recording(found, noisy.training)
    recording.show(noisy.windows)
    (verdict,) = look(recording, State(), recording.newest_seconds)[0]
    assert (verdict.rank, verdict.metric, verdict.also) == (3, "error_lines", ("error_lines:NCCL",))


@pytest.mark.parametrize("pods", [2, 3])
def test_a_containers_series_stand_for_its_pod(pods: int) -> None:
    of_pods = job(4 * pods)
    first = np.arange(of_pods.ranks) % 4 == 0
    of_pods.missing["memory"] = np.broadcast_to(~first[:, None], (of_pods.ranks, of_pods.windows))
    of_pods.memory[4] += 20 * between(of_pods, BEGIN, of_pods.windows)
    recording = Recording(series(of_pods), of_pods.training)
    recording.ranks_per_pod = 4
    recording.show(of_pods.windows)
    found = look(recording, State(), recording.newest_seconds)[0]
    assert [(one.rank, one.metric) for one in found] == [(4, "memory")]
    assert found[0].peers == pytest.approx(40, abs=3)


def test_a_number_of_any_sign_is_compared_with_its_peers() -> None:
    found = series(job())
    random = np.random.default_rng(4)
    found["output:score"] = (-5.0 + random.normal(0, 0.2, found["loss"].shape)).astype(np.float32)
    found["output:score"][1, BEGIN:] -= 4.0
    recording = Recording(found, job().training)
    recording.show(job().windows)
    (verdict,) = look(recording, State(), recording.newest_seconds)[0]
    assert (verdict.rank, verdict.metric, verdict.kind) == (1, "output:score", Kind.DIFFERS)


def test_a_loss_that_falls_and_scatters_raises_nothing() -> None:
    falling = job(seed=3)
    falling.loss += falling.random.normal(0, 0.2, falling.loss.shape)
    for at in range(10 * MINUTE, falling.windows, 12):
        assert verdicts(falling, at) == []


def test_windows_that_come_late_change_no_verdict() -> None:
    late = job()
    late.throttled[3] += 0.5 * between(late, BEGIN, late.windows)
    for rank in range(late.ranks):
        late.arrived[rank, late.windows - rank :] = False
    (found,) = verdicts(late)
    assert (found.rank, found.metric) == (3, "cpu_throttled")


def test_a_board_that_was_filled_window_by_window_is_judged_as_its_recording_is() -> None:
    faulty = job(4, windows=25 * MINUTE)
    faulty.throttled[3] += 0.5 * between(faulty, 20 * MINUTE, faulty.windows)
    found = series(faulty)
    board = Board(4)
    for window in range(faulty.windows):
        end = 10.0 * (window + 1)
        board.set_phase(end - 10, end, Phase.TRAINING)
        for rank in range(4):
            values = {name: (float(of[rank, window]),) * 3 for name, of in found.items()}
            board.add(rank, end, values)  # type: ignore[arg-type]
    recording = Recording(found, faulty.training)
    recording.show(faulty.windows)
    ours, theirs = (look(each, State(), each.newest_seconds) for each in (board, recording))
    assert ours == theirs
    assert [one.rank for one in ours[0]] == [3]


def test_a_look_at_a_large_board_needs_far_less_memory_than_the_board() -> None:
    board = Board(1000, expected_metrics=10_000)
    names = [f"m{number}" for number in range(48)]
    for window in range(1, board.windows + 1):
        for rank in range(6):
            value = 5.0 if rank == 3 and window > board.windows - 30 else 1.0
            end = window * WINDOW_SECONDS
            board.add(rank, end, {name: (value if name == "m0" else 1.0,) * 3 for name in names})
    board.set_phase(0.0, board.newest_seconds, Phase.TRAINING)
    tracemalloc.start()
    try:
        (found,), _ = look(board, State(), board.newest_seconds)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found.rank, found.metric) == (3, "m0")
    assert peak < 0.75 * board.byte_size


def test_an_empty_board_and_one_rank_raise_nothing() -> None:
    assert look(Board(4), State(), 0.0) == ([], State())
    alone = job(1)
    alone.throttled[0] += 0.9 * between(alone, BEGIN, alone.windows)
    assert verdicts(alone) == []
