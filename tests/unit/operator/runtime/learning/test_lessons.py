"""What the leader tells the anomaly service of each job, and what it does with the answer. The API server is a fake."""

from __future__ import annotations

import msgspec
import pytest

from falcon_core.job_kind import kind_of
from falcon_core.model import Cause
from falcon_core.wire.lessons import (
    MAX_MODELS_BYTES,
    Learned,
    Lesson,
    LessonError,
    Models,
    decode_lesson,
    encode_learned,
    models_bytes,
    readable,
)
from falcon_operator.api.common import ObjectMeta
from falcon_operator.api.trainingjob import DiagnosisStatus, TrainingJob, TrainingJobSpec, TrainingJobStatus
from falcon_operator.base.ports import Conflict, NotFound
from falcon_operator.cluster.model_map import Stored
from falcon_operator.runtime.learning.lessons import FORGOTTEN_SECONDS, Lessons, is_quiet
from tests.unit.operator.fake_clock import FakeClock

TEMPLATE = {"spec": {"containers": [{"name": "t", "image": "trainer:1", "command": ["python", "train.py"]}]}}
KIND = kind_of("team", {"replicas": 2, "template": TEMPLATE})


def a_job(uid: str = "u", *, generation: int = 1, replicas: int = 2) -> TrainingJob:
    metadata = ObjectMeta(name=uid, namespace="team", uid=uid, generation=generation)
    return TrainingJob(metadata=metadata, spec=TrainingJobSpec(replicas=replicas, template=TEMPLATE))


def status(state: str = "Running", *notes: DiagnosisStatus) -> TrainingJobStatus:
    return msgspec.convert({"state": state, "diagnoses": msgspec.to_builtins(list(notes))}, TrainingJobStatus)


def note(cause: str, state: str = "Open") -> DiagnosisStatus:
    return DiagnosisStatus(id="1", what="w", where="rank 1", since="s", cause=cause, state=state)  # type: ignore[arg-type]


class Shelf:
    """A ConfigMap, and what was written to it."""

    def __init__(self) -> None:
        self.stored = Stored("1", {KIND: "before"})
        self.written: list[Models] = []
        self.trouble: Exception | None = None

    async def read(self) -> Stored:
        if self.trouble is not None:
            raise self.trouble
        return self.stored

    async def write(self, before: Stored, models: Models) -> None:
        assert before == self.stored
        self.written.append(models)


class Service:
    """An anomaly service, and the lessons that it got."""

    def __init__(self) -> None:
        self.lessons: list[Lesson] = []
        self.answer: bytes | Exception = encode_learned(Learned())

    async def __call__(self, raw: bytes) -> bytes:
        self.lessons.append(decode_lesson(raw))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class School:
    def __init__(self) -> None:
        self.service, self.shelf, self.clock = Service(), Shelf(), FakeClock()
        self.lessons = Lessons(self.service, self.shelf, self.clock)

    async def given(self) -> dict[str, tuple[int, str, bool]]:
        await self.lessons.give()
        return {job.uid: (job.generation, job.kind, job.quiet) for job in self.service.lessons[-1].jobs}


async def test_a_lesson_has_kind_generation_and_health_of_the_jobs_whose_ranks_live() -> None:
    school = School()
    for state in ("Pending", "Starting", "Running", "Degraded", "Recovering", "Suspended", "Succeeded", "Failed"):
        school.lessons.see(a_job(state), 3, status(state))
    assert await school.given() == {
        "Starting": (3, KIND, True),
        "Running": (3, KIND, True),
        "Degraded": (3, KIND, False),
        "Recovering": (3, KIND, False),
    }
    lesson = school.service.lessons[-1]
    assert lesson.models == {KIND: "before"}
    assert lesson.day == int(school.clock.unix() // 86_400)


async def test_trouble_between_two_lessons_is_in_the_next_and_only_there() -> None:
    school = School()
    school.lessons.see(a_job(), 1, status())
    assert (await school.given())["u"][2]
    school.lessons.see(a_job(), 1, status("Degraded"))
    school.lessons.see(a_job(), 1, status())
    school.service.answer = OSError("away")
    with pytest.raises(OSError, match="away"):
        await school.lessons.give()
    school.service.answer = encode_learned(Learned())
    assert not (await school.given())["u"][2], "the lesson that failed said it in vain"
    assert (await school.given())["u"][2]
    school.lessons.see(a_job(), 1, status("Degraded"))
    school.lessons.see(a_job(), 2, status())
    assert (await school.given())["u"] == (2, KIND, True), "new processes begin without it"


@pytest.mark.parametrize(
    ("found", "quiet"),
    [
        ([], True),
        ([note("Computation")], False),
        ([note("Computation", "Resolved")], True),
        ([note(Cause.RANK_DIFFERS.value)], True),
        ([note(Cause.RANK_DIFFERS.value), note(Cause.RUNS_OUT.value)], False),
    ],
)
def test_all_but_the_services_own_verdicts_and_what_is_over_is_trouble(
    found: list[DiagnosisStatus], quiet: bool
) -> None:
    assert is_quiet(status("Running", *found)) is quiet
    assert not is_quiet(status("Degraded", *found))


async def test_another_template_is_another_kind_and_a_job_that_is_gone_is_forgotten() -> None:
    school = School()
    school.lessons.see(a_job(), 1, status())
    school.lessons.see(a_job(generation=2, replicas=4), 2, status())
    assert await school.given() == {"u": (2, kind_of("team", {"replicas": 4, "template": TEMPLATE}), True)}
    school.lessons.see(a_job("ended"), 1, status())
    school.lessons.see(a_job("ended"), 1, status("Succeeded"))
    school.clock.advance(FORGOTTEN_SECONDS + 1)
    assert await school.given() == {}


async def test_what_has_changed_is_written_and_nothing_else() -> None:
    school = School()
    await school.given()
    assert school.shelf.written == []
    school.service.answer = encode_learned(Learned(models={KIND: "after"}))
    await school.given()
    assert school.shelf.written == [{KIND: "after"}]


@pytest.mark.parametrize("answer", [b"{", b'{"models":{"team/gpt2":"x"}}', b'{"models":{"' + KIND.encode() + b'":1}}'])
async def test_an_answer_that_is_none_is_not_written(answer: bytes) -> None:
    school = School()
    school.service.answer = answer
    with pytest.raises(LessonError):
        await school.lessons.give()
    school.service.answer = encode_learned(Learned(models={KIND: "x" * MAX_MODELS_BYTES}))
    with pytest.raises(LessonError, match="at most"):
        await school.lessons.give()
    assert school.shelf.written == []


@pytest.mark.parametrize("trouble", [NotFound("gone"), Conflict("changed"), OSError("away")])
async def test_a_lesson_without_the_config_map_is_none(trouble: Exception) -> None:
    school = School()
    school.shelf.trouble = trouble
    with pytest.raises(type(trouble)):
        await school.lessons.give()
    assert school.service.lessons == []


def test_foreign_and_too_many_entries_are_left_out() -> None:
    other = {kind_of(f"n{number}", {}): "x" * 1000 for number in range(400)}
    found = readable({"README": "y" * MAX_MODELS_BYTES, "../x": "z", **other})
    assert found.items() <= other.items()
    assert MAX_MODELS_BYTES - 2000 < models_bytes(found) <= MAX_MODELS_BYTES


def test_an_entry_that_is_too_large_hides_no_other() -> None:
    first, *others = sorted(kind_of(f"n{number}", {}) for number in range(4))
    small = dict.fromkeys(others, "x")
    assert readable({first: "y" * (MAX_MODELS_BYTES + 1), **small}) == small
