"""What the service holds of jobs: their boards, its bounds, and the CPU time of its looks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from falcon_anomaly import jobs as module
from falcon_anomaly import judge
from falcon_anomaly.detectors.peers import Limit
from falcon_anomaly.inbox import Arrival
from falcon_anomaly.jobs import (
    FORGOTTEN_SECONDS,
    GIVEN_UP_SECONDS,
    LESSON_HOLDS_SECONDS,
    LOOK_SECONDS,
    MOST_EARLY_SECONDS,
    MOST_MEASURE_SECONDS,
    SETTLING_SECONDS,
    Jobs,
)
from falcon_anomaly.learning import document
from falcon_anomaly.queries.joining import Joined, Known
from falcon_anomaly.series.board import Board
from falcon_core.job_kind import kind_of
from falcon_core.wire.lessons import JobLesson, Lesson, Models
from falcon_core.wire.series import CONTAINER, WINDOWS, Phase, Window, encode_chunk
from falcon_core.wire.verdicts import MAX_VERDICTS, OF_THE_JOB, decode_answer, encode_answer

MINUTE = 60.0
ROOM = 256 << 20


def no_cpu() -> float:
    return 0.0


def payload(
    ranks: Sequence[int],
    metrics: Sequence[str] = ("cpu",),
    *,
    generation: int = 1,
    phase: Phase = Phase.TRAINING,
    value: float = 0.5,
) -> bytes:
    window = Window(value, value - 0.25, value + 0.25)
    series = {rank: {name: [window] * WINDOWS for name in metrics} for rank in ranks}
    return encode_chunk(series, [phase] * WINDOWS, generation=generation, number=0, age_ms=0)


def arrival(at: float, chunk: bytes, *, uid: str = "a", pod: int = 0) -> Arrival:
    return Arrival("team", f"job-{uid}", uid, f"{uid}-{pod}", chunk, at)


class Looks:
    """Takes the judge's place, and notes at which boards it was asked to look."""

    def __init__(self, found: Callable[[Board], list[judge.Verdict]] = lambda _: []) -> None:
        self.boards: list[Board] = []
        self.limits: list[Mapping[str, Limit]] = []
        self._found = found

    def __call__(
        self, board: Board, state: judge.State, now: float, limits: Mapping[str, Limit]
    ) -> tuple[list[judge.Verdict], judge.State]:
        self.boards.append(board)
        self.limits.append(limits)
        return self._found(board), state


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    found = Looks()
    monkeypatch.setattr(module.judge, "look", found)
    return found


def settled(jobs: Jobs, at: float = 1000.0, *, ranks: int = 2, uid: str = "a") -> float:
    """Send two minutes of all ranks, a pod each. Return the time after the first look."""
    for minute in range(2):
        for rank in range(ranks):
            jobs.take(arrival(at + minute * MINUTE, payload([rank]), uid=uid, pod=rank))
    jobs.look(at + SETTLING_SECONDS + LOOK_SECONDS)
    return at + SETTLING_SECONDS + LOOK_SECONDS


def test_series_of_all_pods_meet_on_one_board(looks: Looks) -> None:
    jobs = Jobs(ROOM, no_cpu)
    settled(jobs, ranks=3)
    (board,) = looks.boards
    assert (board.ranks, board.metrics) == (3, ("cpu",))
    newest = board.medians("cpu")[:, -2 * WINDOWS :]
    np.testing.assert_array_equal(newest, np.full((3, 12), 0.5, np.float32))
    np.testing.assert_array_equal(board.maxima("cpu")[:, -1], np.full(3, 0.75, np.float32))
    assert board.training()[-2 * WINDOWS :].all()
    assert jobs.figures.refused == 0


@pytest.mark.parametrize("jitter", [(0.0, 0.4, -0.3, 0.2), (0.0, 4.0, -4.0, 4.0)])
def test_chunks_that_come_early_or_late_leave_no_window_out(looks: Looks, jitter: Sequence[float]) -> None:
    jobs = Jobs(ROOM, no_cpu)
    for minute, late in enumerate(jitter):
        jobs.take(arrival(1000.0 + minute * MINUTE + late, payload([0], value=minute + 1.0)))
    jobs.look(1300.0)
    (board,) = looks.boards
    np.testing.assert_array_equal(board.medians("cpu")[0, -24:], np.repeat(np.float32([1, 2, 3, 4]), WINDOWS))


def test_a_series_of_the_container_counts_for_the_pods_first_rank_and_is_not_mixed_with_its_own(looks: Looks) -> None:
    jobs = Jobs(ROOM, no_cpu)
    for minute in range(2):
        for pod in range(2):
            chunk = payload([CONTAINER, 2 * pod, 2 * pod + 1], ["cpu", "memory"])
            jobs.take(arrival(1000.0 + minute * MINUTE, chunk, pod=pod))
    jobs.look(1100.0 + LOOK_SECONDS)
    (board,) = looks.boards
    assert (board.ranks, board.ranks_per_pod) == (4, 2)
    assert set(board.metrics) == {"cpu", "cpu:container", "memory"}
    newest = board.medians("cpu:container")[:, -1]
    np.testing.assert_array_equal(newest, np.float32([0.5, np.nan, 0.5, np.nan]))


def test_one_pod_that_does_something_else_makes_the_window_no_training(looks: Looks) -> None:
    jobs = Jobs(ROOM, no_cpu)
    jobs.take(arrival(1000.0, payload([0], phase=Phase.CHECKPOINT), pod=0))
    jobs.take(arrival(1000.0, payload([1]), pod=1))
    jobs.take(arrival(1060.0, payload([0]), pod=0))
    jobs.take(arrival(1060.0, payload([1]), pod=1))
    jobs.look(1000.0 + SETTLING_SECONDS + LOOK_SECONDS)
    (board,) = looks.boards
    assert list(board.training()[-2 * WINDOWS :]) == [False] * WINDOWS + [True] * WINDOWS


def test_another_generation_begins_with_an_empty_board_and_an_older_one_is_not_taken(looks: Looks) -> None:
    jobs = Jobs(ROOM, no_cpu)
    now = settled(jobs)
    jobs.take(arrival(now, payload([0], ["rss"], generation=2)))
    jobs.take(arrival(now, payload([0], generation=1)))
    assert jobs.figures.unwanted == 1
    jobs.look(now + SETTLING_SECONDS + LOOK_SECONDS)
    assert [board.metrics for board in looks.boards] == [("cpu",), ("rss",)]


def test_bytes_that_are_no_chunk_are_counted_and_cost_nothing(looks: Looks) -> None:
    jobs = Jobs(ROOM, no_cpu)
    now = settled(jobs)
    jobs.take(arrival(now, b"\x01garbage"))
    jobs.take(arrival(now, b""))
    assert jobs.figures.malformed == 2
    assert jobs.look(now + LOOK_SECONDS)


def test_a_job_that_floods_loses_its_own_series_and_gets_room_again_after_an_hour(looks: Looks) -> None:
    jobs = Jobs(64 << 10, no_cpu)
    now = settled(jobs, uid="quiet")
    flood = payload(range(64), [f"m{number}" for number in range(48)])
    jobs.take(arrival(now, flood, uid="flood"))
    given_up_at = now + SETTLING_SECONDS + LOOK_SECONDS
    jobs.look(given_up_at)
    assert jobs.figures.given_up == 1
    looks.boards.clear()
    jobs.take(arrival(given_up_at, flood, uid="flood"))
    jobs.look(given_up_at + 2 * LOOK_SECONDS)
    assert [board.ranks for board in looks.boards] == [2], "the quiet job keeps its series"
    assert jobs.figures.unwanted == 1
    jobs.take(arrival(given_up_at + GIVEN_UP_SECONDS, payload([0]), uid="flood"))
    assert jobs.figures.unwanted == 1


def test_a_board_that_grows_too_large_while_it_is_filled_is_given_up_at_once(looks: Looks) -> None:
    room = 4 << 20
    jobs = Jobs(room, no_cpu)
    for uid in ("large", "grows"):
        now = settled(jobs, ranks=64, uid=uid)
    many = payload(range(64), [f"m{number}" for number in range(48)])
    jobs.take(arrival(now, many, uid="large"))
    assert jobs.figures.given_up == 0
    jobs.take(arrival(now, many, uid="grows"))
    assert jobs.figures.given_up == 1
    assert jobs.byte_size < room


def test_a_rank_out_of_bounds_costs_no_more_than_its_job(looks: Looks) -> None:
    jobs = Jobs(ROOM, no_cpu)
    now = settled(jobs, uid="quiet")
    jobs.take(arrival(now, payload([2**31 - 1]), uid="far"))
    jobs.look(now + SETTLING_SECONDS + LOOK_SECONDS)
    jobs.look(now + SETTLING_SECONDS + 2 * LOOK_SECONDS)
    assert jobs.byte_size < ROOM
    assert {board.ranks for board in looks.boards} == {2, 10_000}


def test_ranks_that_come_late_have_one_board_made_for_all_of_them(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(ROOM, no_cpu)
    now = settled(jobs)
    made: list[int] = []

    def counted(ranks: int, **more: int) -> Board:
        made.append(ranks)
        return Board(ranks, **more)

    monkeypatch.setattr(module, "Board", counted)
    for rank in range(2, 40):
        jobs.take(arrival(now + rank, payload([rank]), pod=rank))
    jobs.look(now + 2 * SETTLING_SECONDS)
    jobs.look(now + 2 * SETTLING_SECONDS + LOOK_SECONDS)
    assert made == [40]
    assert looks.boards[-1].ranks == 40


@pytest.mark.parametrize("room", [64 << 20, 160 << 20])
def test_the_largest_job_alone_has_room(looks: Looks, room: int) -> None:
    jobs = Jobs(room, no_cpu)
    now = settled(jobs, uid="quiet")
    jobs.take(arrival(now, payload([9_999], [f"m{number}" for number in range(48)]), uid="large"))
    jobs.look(now + SETTLING_SECONDS + LOOK_SECONDS)
    assert jobs.figures.given_up == 0
    assert room / 2 < jobs.byte_size < room


def test_large_boards_that_are_made_in_one_look_have_room_one_at_a_time(looks: Looks) -> None:
    room = 64 << 20
    jobs = Jobs(room, no_cpu)
    for uid in "abc":
        jobs.take(arrival(1000.0, payload([9_999], [f"m{number}" for number in range(48)]), uid=uid))
    jobs.look(1000.0 + SETTLING_SECONDS)
    assert jobs.figures.given_up == 2
    assert jobs.byte_size < room


def test_of_too_many_verdicts_the_jobs_and_the_farthest_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(board: Board) -> list[judge.Verdict]:
        of_ranks = [
            judge.Verdict(rank=rank, metric="cpu", kind=judge.Kind.DIFFERS, since_seconds_ago=60.0, value=0.2,
                          peers_score=1.0 + rank)
            for rank in range(MAX_VERDICTS + 8)
        ]  # fmt: skip
        spike = judge.Verdict(rank=None, metric="loss", kind=judge.Kind.LOSS_SPIKE, since_seconds_ago=5.0, value=9.0)
        return [*of_ranks, spike]

    monkeypatch.setattr(module.judge, "look", Looks(found))
    jobs = Jobs(ROOM, no_cpu)
    now = settled(jobs)
    (job,) = decode_answer(encode_answer(jobs.answer(now))).jobs
    assert [each.rank for each in job.verdicts] == [*range(9, MAX_VERDICTS + 8), OF_THE_JOB]


def test_looks_stay_within_the_budget_and_no_job_is_left_out_for_ever(looks: Looks) -> None:
    spent = 0.0

    def cpu() -> float:
        nonlocal spent
        spent += module.BUDGET_SECONDS * 0.6 / 2  # each look asks twice
        return spent

    jobs = Jobs(ROOM, cpu)
    for number in range(6):
        now = settled(jobs, uid=str(number))
    looks.boards.clear()
    jobs.figures.looks = 0
    turns = 12
    for turn in range(1, turns + 1):
        jobs.look(now + turn * LOOK_SECONDS)
    assert jobs.figures.looks <= turns / 0.3 + 1
    assert len({id(board) for board in looks.boards}) == 6
    assert jobs.figures.postponed > 0


def test_a_user_who_asks_without_end_stops_no_look(looks: Looks) -> None:
    spent = 0.0

    def cpu() -> float:
        return spent

    def two_seconds(*_: object) -> None:
        nonlocal spent
        spent += module.OVERVIEW_SECONDS

    jobs = Jobs(ROOM, cpu)
    now = settled(jobs)
    looks.boards.clear()
    turns = 12
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.overviews, "overview", two_seconds)
        for turn in range(1, turns + 1):
            jobs.overview("a", 7200, now)
            jobs.look(now + turn * LOOK_SECONDS)
    assert len(looks.boards) == turns
    assert jobs.figures.look_seconds == pytest.approx(turns * module.OVERVIEW_SECONDS)


def test_a_look_that_fails_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(board: Board) -> list[judge.Verdict]:
        raise FloatingPointError("one job's series")

    monkeypatch.setattr(module.judge, "look", Looks(found))
    jobs = Jobs(ROOM, no_cpu)
    now = settled(jobs)
    assert (jobs.figures.looks, jobs.figures.failed) == (1, 1)
    assert jobs.answer(now).jobs == []


def test_verdicts_are_told_with_their_age_and_only_with_numbers_that_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = judge.Kind

    def found(board: Board) -> list[judge.Verdict]:
        return [
            judge.Verdict(rank=1, metric="cpu", kind=kinds.DIFFERS, since_seconds_ago=60.0, value=0.2, peers=0.9,
                          peers_score=4.0, detectors=("peers",)),
            judge.Verdict(rank=None, metric="loss", kind=kinds.LOSS_SPIKE, since_seconds_ago=5.0, value=float("nan")),
        ]  # fmt: skip

    monkeypatch.setattr(module.judge, "look", Looks(found))
    jobs = Jobs(ROOM, no_cpu)
    now = settled(jobs)
    (job,) = decode_answer(encode_answer(jobs.answer(now + 30.0))).jobs
    assert (job.uid, job.namespace, job.name, job.generation) == ("a", "team", "job-a", 1)
    first, second = job.verdicts
    assert (first.kind, first.rank, first.lasted, first.peers) == ("differs", 1, 90, 0.9)
    assert (second.rank, second.value) == (OF_THE_JOB, None)


def test_a_job_that_is_silent_for_long_is_forgotten(looks: Looks) -> None:
    jobs = Jobs(ROOM, no_cpu)
    settled(jobs)
    jobs.look(1000.0 + MINUTE + FORGOTTEN_SECONDS + 1)
    assert (jobs.byte_size, jobs.figures.jobs) == (0, 0)


# -- lessons -----------------------------------------------------------------------------------------------------------

KIND = kind_of("team", {"replicas": 2})


def lesson(*uids: str, quiet: bool = True, generation: int = 1, models: Models | None = None) -> Lesson:
    jobs = [JobLesson(uid=uid, generation=generation, kind=KIND, quiet=quiet) for uid in uids]
    return Lesson(day=20_000, jobs=jobs, models=models or {})


class Service:
    """A service with looks each minute and lessons each five, whose jobs send steady series."""

    def __init__(self) -> None:
        self.jobs = Jobs(ROOM, no_cpu)
        self.models: Models = {}
        self.now = 1000.0

    def train(self, uid: str, minutes: int, *, quiet: bool = True, odd: float = 0.5) -> None:
        """Let a job of two ranks train; ``odd``: the second rank's value in the newest five minutes, else 0.5."""
        for minute in range(minutes):
            values = (0.5, odd if minute >= minutes - 5 else 0.5)
            for rank, value in enumerate(values):
                self.jobs.take(arrival(self.now, payload([rank], ["cpu"], value=value), uid=uid, pod=rank))
            self.jobs.look(self.now)
            if minute % 5 == 0:
                learned = self.jobs.lesson(lesson(uid, quiet=quiet, models=self.models), self.now)
                self.models = self.models if learned.models is None else learned.models
            self.now += MINUTE

    def found(self) -> list[str]:
        return [each.metric for job in self.jobs.answer(self.now).jobs for each in job.verdicts]


def taught() -> Service:
    service = Service()
    for number in range(5):
        service.train(f"job-{number}", 190)
    return service


@pytest.fixture(scope="module")
def models() -> Models:
    return taught().models


def test_healthy_runs_lower_the_limits_of_their_kind_and_a_smaller_difference_is_found() -> None:
    odd = 0.5 * 1.35  # of a floor of 0.4: below what is shipped, and above half of it
    fresh = Service()
    fresh.train("new", 190, odd=odd)
    assert fresh.found() == []
    service = taught()
    (text,) = service.models.values()
    assert document.decode(text).limits["cpu"] == (50, 50)
    service.train("new", 190, odd=odd)
    assert service.found() == ["cpu"]
    (verdict,) = service.jobs.answer(service.now).jobs[0].verdicts
    assert verdict.detectors[-1] == "learned-limits"
    assert service.jobs.figures.kinds == 1


def test_a_run_with_trouble_teaches_nothing() -> None:
    service = taught()
    before = document.decode(service.models[KIND]).runs
    service.train("troubled", 190, quiet=False)
    assert document.decode(service.models[KIND]).runs == before


def test_another_generation_and_a_job_that_is_not_known_teach_nothing(looks: Looks) -> None:
    jobs = Jobs(ROOM, no_cpu)
    now = settled(jobs)
    assert jobs.lesson(lesson("a", "unknown", generation=2), now).models is None
    assert jobs.lesson(lesson("a", generation=0), now + MINUTE).models is None
    assert looks.limits == [{}]


def test_a_service_that_starts_again_has_the_limits_from_the_next_lesson(models: Models, looks: Looks) -> None:
    jobs = Jobs(ROOM, no_cpu)
    now = settled(jobs)
    assert looks.limits[-1] == {}, "until then, what is shipped"
    assert jobs.lesson(lesson("a", models=models), now).models is None
    jobs.look(now + LOOK_SECONDS)
    assert looks.limits[-1]["cpu"] == Limit(0.5, 0.5)


def test_without_lessons_the_shipped_limits_hold_again(models: Models, looks: Looks) -> None:
    jobs = Jobs(ROOM, no_cpu)
    now = settled(jobs)
    jobs.lesson(lesson("a", models=models), now)
    for at in (now + LOOK_SECONDS, now + LESSON_HOLDS_SECONDS, now + LESSON_HOLDS_SECONDS + LOOK_SECONDS):
        jobs.take(arrival(at, payload([0])))
        jobs.look(at)
    assert [bool(each) for each in looks.limits] == [False, True, True, False]


def test_a_job_whose_measurement_takes_too_long_teaches_nothing_and_is_judged_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]

    def slow(_: Board) -> tuple[bool, dict[str, float]]:
        clock[0] += MOST_MEASURE_SECONDS + 0.1
        measured.append(clock[0])
        return False, {}

    measured: list[float] = []
    monkeypatch.setattr(module, "reaches", slow)
    service = Service()
    service.jobs = Jobs(ROOM, lambda: clock[0])
    service.train("large", 60)
    assert len(measured) == 1
    assert service.jobs.figures.looks > 20


def test_learning_that_fails_costs_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Board) -> tuple[bool, dict[str, float]]:
        raise ValueError("broken")

    monkeypatch.setattr(module, "reaches", broken)
    service = Service()
    service.train("a", 190, odd=0.1)
    assert service.found() == ["cpu"]
    assert service.jobs.figures.failed == 1


def queried(rank: int, *values: float) -> Joined:
    return Joined(np.array([rank]), np.array([values], np.float32))


def test_what_prometheus_says_stands_at_its_windows_as_far_as_agents_have_sent_them(looks: Looks) -> None:
    jobs = Jobs(ROOM, no_cpu)
    now = settled(jobs)
    (board,) = looks.boards
    newest = board.newest_seconds
    ends = newest + 10.0 * np.arange(-1, 3) - 4.0
    jobs.take_queried("queried:m", ends, {"a": queried(1, 1.0, 2.0, 3.0, 4.0), "gone": queried(0, 9.0, 9.0, 9.0, 9.0)})
    assert board.newest_seconds == newest, "the agents' series must not seem to have ended"
    assert board.medians("queried:m")[1, -2:].tolist() == [1.0, 2.0]
    jobs.take(arrival(now + MINUTE, payload([0])))
    held = board.medians("queried:m")[1]
    assert held[np.isfinite(held)].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert np.isnan(board.medians("queried:m")[0]).all()


def test_what_prometheus_says_long_before_the_agents_or_of_ranks_that_do_not_exist_is_left_out(looks: Looks) -> None:
    jobs = Jobs(ROOM, no_cpu)
    now = settled(jobs)
    (board,) = looks.boards
    late = board.newest_seconds + MOST_EARLY_SECONDS + 10.0
    jobs.take_queried("queried:m", np.array([late]), {"a": queried(1, 1.0)})
    jobs.take_queried("queried:n", np.array([board.newest_seconds]), {"a": queried(7, 1.0)})
    for minute in range(6):
        jobs.take(arrival(now + minute * MINUTE, payload([0])))
    assert set(board.metrics) == {"cpu"}


def test_pods_are_known_with_their_ranks_as_agents_send_them(looks: Looks) -> None:
    jobs = Jobs(ROOM, no_cpu)
    jobs.take(arrival(1000.0, payload([CONTAINER, 3, 2])))
    assert jobs.pods() == {"a-0": Known("a", "team", (2, 3))}
