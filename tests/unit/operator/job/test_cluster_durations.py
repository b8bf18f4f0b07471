"""What a job learns of the cluster's other jobs: a few of each, and nothing of its own."""

from __future__ import annotations

from falcon_core.model import Cause
from falcon_core.recovery.model.suspects import Lasted
from falcon_operator.job.cluster_durations import MOST_ALIKE, MOST_JOBS, Elsewhere


def lasted(seconds: float, cause: Cause = Cause.CPU_CONTENTION, depth: int = 1) -> Lasted:
    return Lasted(cause=cause, depth=depth, seconds=seconds)


def test_the_newest_few_of_each_kind_are_known_to_the_others() -> None:
    elsewhere = Elsewhere()
    many = [lasted(float(number)) for number in range(10)]
    elsewhere.take("a", [lasted(99.0, Cause.CPU_THROTTLING), *many, lasted(98.0, depth=2)])
    elsewhere.take("b", [lasted(50.0)])
    assert elsewhere.of_others("b") == [lasted(99.0, Cause.CPU_THROTTLING), *many[-MOST_ALIKE:], lasted(98.0, depth=2)]
    assert elsewhere.of_others("a") == [lasted(50.0)]
    assert len(elsewhere.of_others("c")) == MOST_ALIKE + 3


def test_what_a_job_remembers_anew_takes_the_place_of_what_it_remembered() -> None:
    elsewhere = Elsewhere()
    elsewhere.take("a", [lasted(1.0)])
    elsewhere.take("a", [lasted(1.0), lasted(2.0)])
    elsewhere.take("b", [])
    assert elsewhere.of_others("b") == [lasted(1.0), lasted(2.0)]


def test_the_jobs_that_had_a_slowdown_last_are_kept() -> None:
    elsewhere = Elsewhere()
    for number in range(MOST_JOBS):
        elsewhere.take(f"job-{number}", [lasted(float(number))])
    elsewhere.take("job-0", [lasted(0.0), lasted(1000.0)])
    elsewhere.take("new", [lasted(2000.0)])
    found = [each.seconds for each in elsewhere.of_others("")]
    assert found[0] == 2.0, "job-1 made room"
    assert found[-3:] == [0.0, 1000.0, 2000.0]
