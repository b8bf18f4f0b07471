"""What a job's owner reads after ``kubectl falcon check --metrics``, and that no look waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from falcon_core.wire.overview import MAX_COLUMNS, MAX_MAPS, MAX_RANKS, MAX_ROWS, Map, Overview, Row
from falcon_core.wire.verdicts import OF_THE_JOB
from falcon_operator.api.common import ANNOTATION_METRICS
from falcon_operator.api.metrics_check import MetricsCheckStatus
from falcon_operator.base.ports import SeriesAnswer
from falcon_operator.job.reconciler import JobReconciler
from falcon_operator.runtime import series_questions
from falcon_operator.runtime.series_questions import (
    OFF,
    REST_SECONDS,
    SeriesQuestions,
    question_of,
    seconds_of,
    without_a_service,
)
from falcon_operator.status.limits import STATUS_BYTES, fit
from falcon_operator.status.metrics_check import SHOWN_SECONDS, measured
from tests.unit.operator.status.test_limits import huge
from tests.world.running import operator, run, trained
from tests.world.world import World

ASKED = "20261130T120000Z-abc.1800"
SEEN = Overview(
    generation=1,
    seconds=1800,
    column_seconds=30,
    ranks=3,
    metrics=5,
    compared=4,
    training_seconds=1800,
    rows=[
        Row(metric="cpu", rank=2, verdict="differs", began=300, value=0.31, own=0.96, peers=0.97, score=4.04),
        Row(metric="memory", rank=0, began=900, ended=600, value=3.5 * 2**30, peers=2**30, score=1.5),
        Row(metric="loss", rank=OF_THE_JOB, verdict="loss-spike", began=60),
        Row(metric="threads", rank=77, began=60),
    ],
    maps=[Map(metric="cpu", ranks=[0, 1, 2], rows=["0012", "0.00", "00gz"])],
)


def annotate(world: World, value: str) -> None:
    meta = msgspec.structs.replace(world.job.metadata, annotations={ANNOTATION_METRICS: value})
    world.job = msgspec.structs.replace(world.job, metadata=meta)


def answering(world: World, overview: Overview | None = SEEN, trouble: str = "") -> Callable[[World], JobReconciler]:
    """Return an operator that has an answer to each question which the status does not show."""

    def of(job: object) -> SeriesAnswer | None:
        shown = world.status.metrics_check
        if shown is not None and shown.asked == ASKED:
            return None
        return SeriesAnswer(asked=ASKED, at=world.clock.unix(), overview=overview, trouble=trouble)

    return lambda world: operator(world, series=of)


async def shown(overview: Overview | None = SEEN, trouble: str = "") -> tuple[World, MetricsCheckStatus]:
    world = World()
    await trained(world)
    await run(world, answering(world, overview, trouble), lambda w: w.status.metrics_check is not None)
    assert world.status.metrics_check is not None
    return world, world.status.metrics_check


async def test_the_answer_has_nodes_times_and_units() -> None:
    world, found = await shown()
    assert (found.asked, found.state, found.column_seconds) == (ASKED, "Done", 30)
    assert found.result == (
        "4 of 5 metrics of 3 ranks compared over the last 30 min: 2 verdicts;"
        " 2 further differences that led to no verdict"
    )
    cpu, memory, loss, unknown = found.worst
    assert (cpu.rank, cpu.node, cpu.verdict, cpu.score) == (2, world.node_of(2).name, "differs", "4.0")
    assert (cpu.value, cpu.own, cpu.peers, cpu.ended) == ("0.31 cores", "0.96 cores", "0.97 cores", "")
    assert (memory.value, memory.own, memory.peers, memory.verdict) == ("3.5 GiB", "", "1 GiB", "")
    assert memory.began < memory.ended < found.at
    assert (loss.rank, loss.node) == (None, "")
    assert (unknown.rank, unknown.node) == (77, ""), "the job's own pods may name ranks that do not exist"
    assert found.maps[0].rows == ["0012", "0.00", "00gz"]


async def test_the_maps_go_after_ten_minutes_and_the_same_question_is_not_asked_again() -> None:
    world, _ = await shown()
    end = world.clock.seconds + 30
    await run(world, answering(world), lambda w: w.clock.seconds >= end)
    assert world.status.metrics_check is not None
    assert world.status.metrics_check.maps
    world.clock.seconds += SHOWN_SECONDS
    await run(world, answering(world), lambda w: not (w.status.metrics_check and w.status.metrics_check.maps))
    left = world.status.metrics_check
    assert left is not None
    assert (left.asked, left.worst, left.state) == (ASKED, [], "Done")


async def test_a_table_without_maps_goes_after_ten_minutes_as_well() -> None:
    world, found = await shown(msgspec.structs.replace(SEEN, maps=[]))
    assert found.worst
    world.clock.seconds += SHOWN_SECONDS + 1
    await run(world, answering(world), lambda w: not (w.status.metrics_check and w.status.metrics_check.worst))
    assert world.status.metrics_check is not None
    assert world.status.metrics_check.worst == []


@pytest.mark.parametrize(
    ("overview", "trouble", "said"),
    [
        (None, "the anomaly service does not answer", "the anomaly service does not answer"),
        (msgspec.structs.replace(SEEN, generation=7), "", "an earlier start of the job"),
    ],
)
async def test_what_cannot_be_shown_says_why(overview: Overview | None, trouble: str, said: str) -> None:
    _, found = await shown(overview, trouble)
    assert (found.state, found.maps, found.worst) == ("Failed", [], [])
    assert said in found.result


@pytest.mark.parametrize(
    ("ranks", "seconds", "said"),
    [
        (3, 240, "nothing compared yet: there are 4 min of training, and comparisons begin after ten minutes"),
        (3, 7200, "nothing compared, though there are 120 min of training: no metric has enough"),
        (1, 7200, "nothing compared: there are series of 1 rank, and comparisons need two ranks"),
    ],
)
async def test_why_nothing_was_compared_is_said(ranks: int, seconds: int, said: str) -> None:
    nothing = msgspec.structs.replace(SEEN, ranks=ranks, compared=0, rows=[], maps=[], training_seconds=seconds)
    _, found = await shown(nothing)
    assert found.state == "Done"
    assert said in found.result


async def test_the_largest_answer_fits_and_what_the_operator_says_unasked_comes_first() -> None:
    metric = 64 * "m"
    row = Row(
        metric=metric, rank=2, verdict=32 * "v", began=9, ended=9, value=1e-300, own=-1e300, peers=1e300, score=1e9
    )
    ranks = list(range(10_000, 10_000 + MAX_RANKS))
    one = Map(metric=metric, ranks=ranks, rows=[MAX_COLUMNS * "z"] * MAX_RANKS)
    overview = msgspec.structs.replace(SEEN, rows=[row] * MAX_ROWS, maps=[one] * MAX_MAPS)
    _, found = await shown(overview)
    assert len(found.maps) == MAX_MAPS, "alone it fits"
    assert len(msgspec.json.encode(found)) < STATUS_BYTES * 2 / 3
    crowded = fit(msgspec.structs.replace(huge(1000), metrics_check=found))
    assert len(msgspec.json.encode(crowded)) <= STATUS_BYTES
    assert crowded.metrics_check is not None
    assert len(crowded.metrics_check.maps) < MAX_MAPS
    assert len(crowded.diagnoses) >= len(fit(huge(1000)).diagnoses) - 2, "the maps went, and the diagnoses stayed"


@pytest.mark.parametrize(
    ("metric", "value", "said"),
    [
        ("computation", 0.0123, "12.3 ms"),
        ("iteration", 12.0, "12 s"),
        ("network_in", 2.5e6, "2.384 MiB/s"),
        ("disk:/data", 0.931, "93.1 %"),
        ("retransmits", 12.0, "12/s"),
        ("memory", 1e300, "9.095e+287 TiB"),
        ("loss", 2.34567, "2.346"),
        ("loss", None, ""),
    ],
)
def test_values_have_their_unit(metric: str, value: float | None, said: str) -> None:
    assert measured(metric, value) == said


# -- questions ---------------------------------------------------------------------------------------------------------


class Service:
    """What is asked of the anomaly service, and what it answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.answer: Callable[[], Awaitable[Overview]] = self._seen

    async def _seen(self) -> Overview:
        return SEEN

    async def __call__(self, uid: str, seconds: int) -> Overview:
        self.asked.append((uid, seconds))
        return await self.answer()


async def failing(error: Exception) -> Overview:
    raise error


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_questions, "PAUSE_SECONDS", 0.0)


async def until(true: Callable[[], object]) -> None:
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("still not")


async def answered(world: World, service: Service) -> SeriesAnswer:
    """Ask as a look at the job does, twice: before the service has answered, and after it."""
    looks: list[tuple[str, str]] = []
    questions = SeriesQuestions(service, world.clock, lambda *name: looks.append(name))
    assert questions.of(world.job) is None, "no look waits"
    assert questions.of(world.job) is None
    task = asyncio.create_task(questions.run())
    try:
        await until(lambda: looks)
        assert looks == [(world.job.metadata.namespace, world.job.metadata.name)]
        answer = questions.of(world.job)
        assert answer is not None
        assert len(service.asked) == 1, "asked once, whatever looks there are"
        return answer
    finally:
        task.cancel()


async def test_a_question_is_asked_once_and_its_answer_calls_for_a_look(fast: None) -> None:
    world, service = World(), Service()
    annotate(world, ASKED)
    answer = await answered(world, service)
    assert (answer.asked, answer.overview, answer.trouble) == (ASKED, SEEN, "")
    assert service.asked == [(world.job.metadata.uid, 1800)]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (LookupError("x"), "has no series of this job"),
        (OSError("refused"), "does not answer: OSError: refused"),
        (ValueError(5000 * "x"), "does not answer"),
    ],
)
async def test_a_service_that_does_not_answer_is_named_to_the_user(fast: None, error: Exception, said: str) -> None:
    world, service = World(), Service()
    annotate(world, ASKED)
    service.answer = lambda: failing(error)
    answer = await answered(world, service)
    assert answer.overview is None
    assert said in answer.trouble
    assert len(answer.trouble) <= 512


async def test_a_job_that_asks_without_end_rests_and_holds_up_no_other(fast: None) -> None:
    world, other, service = World(), World(), Service()
    meta = msgspec.structs.replace(other.job.metadata, uid="another", annotations={ANNOTATION_METRICS: "b.60"})
    other.job = msgspec.structs.replace(other.job, metadata=meta)
    questions = SeriesQuestions(service, world.clock, lambda *_: None)
    task = asyncio.create_task(questions.run())
    for number in range(50):
        annotate(world, f"{number}.7200")
        questions.of(world.job)
        if number == 25:
            questions.of(other.job)
        await asyncio.sleep(0)
    await until(lambda: ("another", 60) in service.asked)
    assert len(service.asked) == 2, "one of each"
    world.clock.seconds += REST_SECONDS + 1
    await until(lambda: len(service.asked) == 3)
    answer = questions.of(world.job)
    assert answer is not None
    assert answer.asked == "49.7200", "the newest question counts"
    task.cancel()


@pytest.mark.parametrize(("took", "pause"), [(0.01, 1.0), (2.0, 8.0), (60.0, 10.0)])
def test_the_pause_after_an_answer_leaves_the_service_time_for_its_looks(took: float, pause: float) -> None:
    assert series_questions.pause_after(took) == pause


def test_without_a_service_the_user_reads_who_may_change_that() -> None:
    world = World()
    assert without_a_service(world.clock)(world.job) is None
    annotate(world, ASKED)
    answer = without_a_service(world.clock)(world.job)
    assert answer is not None
    assert (answer.asked, answer.trouble) == (ASKED, OFF)


@pytest.mark.parametrize(("asked", "seconds"), [("a.60", 60), ("a", 7200), ("a.x", 7200), ("9.123456", 7200)])
def test_a_question_names_how_far_to_look_back(asked: str, seconds: int) -> None:
    assert seconds_of(asked) == seconds


def test_a_question_is_cut_to_what_the_status_may_hold() -> None:
    world = World()
    annotate(world, 5000 * "x")
    assert len(question_of(world.job)) == 63
