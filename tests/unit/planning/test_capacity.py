"""Capacity: eq. 2–5 of Unicron, exact against every assignment; the look-up table is the plan made ahead."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_core.planning.capacity import capacity
from falcon_core.planning.capacity.capacity import Assignment, FailureRate, Horizon, Job, common_unit, plan
from falcon_core.planning.capacity.capacity_prune import prune
from falcon_core.planning.capacity.capacity_table import JobArrived, JobEnded, WorkerFailed, WorkersJoined, build_table
from falcon_core.planning.errors import InvalidInputError, InvalidSpeedError, PlanningError

HOUR = Horizon(running_seconds=3600.0, transition_seconds=60.0)


def value(jobs: Sequence[Job], counts: Sequence[int], horizon: Horizon, faulted: frozenset[str]) -> float:
    """Return Σ G of eq. 3, written down a second time."""
    total = 0.0
    for job, count in zip(jobs, counts, strict=True):
        waf = job.weight * job.throughput[count] if count else 0.0
        held = job.weight * job.throughput.get(job.workers, 0.0)
        total += waf * horizon.running_seconds
        if job.name in faulted or count != job.workers:
            total -= held * horizon.transition_seconds
    return total


def best(jobs: Sequence[Job], workers: int, horizon: Horizon, faulted: frozenset[str] = frozenset()) -> float:
    every = itertools.product(*([0, *job.throughput] for job in jobs))
    return max(value(jobs, counts, horizon, faulted) for counts in every if sum(counts) <= workers)


@st.composite
def some_jobs(draw: st.DrawFn) -> list[Job]:
    unit = draw(st.sampled_from([1, 2]))
    jobs = []
    for index in range(draw(st.integers(1, 4))):
        sizes = draw(st.sets(st.integers(1, 5), min_size=0, max_size=4))
        throughput = {size * unit: draw(st.floats(0.5, 10.0)) * size for size in sizes}
        workers = draw(st.sampled_from([0, *throughput, 3]))
        jobs.append(Job(name=f"job-{index}", throughput=throughput, weight=draw(st.floats(0.5, 2.0)), workers=workers))
    return jobs


horizons = st.builds(
    lambda running, transition: Horizon(running_seconds=running, transition_seconds=transition),
    st.floats(10.0, 1e4),
    st.sampled_from([0.0, 30.0, 5e3]),
)


def sound(found: Assignment, jobs: Sequence[Job], workers: int) -> None:
    assert sum(found.workers.values()) <= workers
    for job in jobs:
        assert found.workers[job.name] in {0, *job.throughput}
    assert found.waf == pytest.approx(sum(job.waf(found.workers[job.name]) for job in jobs))


@settings(deadline=None, derandomize=True)
@given(some_jobs(), st.integers(0, 16), horizons, st.data(), st.booleans())
def test_no_assignment_is_worth_more(
    jobs: list[Job], workers: int, horizon: Horizon, data: st.DataObject, pruned: bool
) -> None:
    faulted = frozenset(data.draw(st.sets(st.sampled_from([job.name for job in jobs]))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capacity, "PRUNE_ABOVE", -1 if pruned else 1 << 60)
        found = plan(jobs, workers, horizon, faulted=faulted)
    sound(found, jobs, workers)
    assert found.value == pytest.approx(best(jobs, workers, horizon, faulted), rel=1e-9, abs=1e-6)
    assert set(found.changed) == {job.name for job in jobs if found.workers[job.name] != job.workers} | faulted


@settings(deadline=None, derandomize=True, max_examples=40)
@given(some_jobs(), st.integers(1, 12), st.integers(1, 2), st.sampled_from([0.0, 30.0]))
def test_the_table_is_the_plan_made_ahead(jobs: list[Job], workers: int, per_node: int, transition: float) -> None:
    def horizon(size: int) -> Horizon:
        return Horizon(running_seconds=1e4 / (size + 1), transition_seconds=transition)

    newcomer = Job(name="new", throughput={2: 7.0, 4: 12.0})
    table = build_table(jobs, workers, horizon, workers_per_node=per_node, arrivals=[newcomer])
    fewer, more = workers - per_node, workers + per_node
    expected = {
        WorkersJoined(): (jobs, more, frozenset[str]()),
        JobArrived("new"): ([*jobs, newcomer], workers, frozenset[str]()),
        **{JobEnded(gone.name): ([job for job in jobs if job is not gone], workers, frozenset[str]()) for gone in jobs},
    }
    if fewer >= 0:
        expected[WorkerFailed(None)] = (jobs, fewer, frozenset[str]())
        expected |= {WorkerFailed(job.name): (jobs, fewer, frozenset({job.name})) for job in jobs}
    assert set(table.plans) == set(expected)
    for event, (then, size, faulted) in expected.items():
        found = table.after(event)
        sound(found, then, size)
        assert found.value == pytest.approx(best(then, size, horizon(size), faulted), rel=1e-9, abs=1e-6)
        assert set(found.workers) == {job.name for job in then}


def test_pruning_leaves_few_counts_and_changes_nothing() -> None:
    """Check a case beyond brute force: 20 jobs that can each run with any of 300 counts."""
    curve = {size: size**0.9 for size in range(1, 301)}
    jobs = [Job(name=f"job-{n}", throughput=curve, weight=1 + n / 20, workers=30) for n in range(20)]
    options = [capacity.options_of(job, HOUR, 1) for job in jobs]
    kept = sum(len(choices.units) for choices in prune(options, 700))
    assert kept < sum(len(choices.units) for choices in options) / 3
    plain = plan(jobs, 700, HOUR)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capacity, "PRUNE_ABOVE", -1)
        pruned = plan(jobs, 700, HOUR)
    assert pruned.value == pytest.approx(plain.value, rel=1e-12)


def test_workers_go_to_the_weightier_job() -> None:
    curve = {size: size**0.9 for size in (1, 2, 3, 4)}
    jobs = [Job(name="a", throughput=curve, weight=0.5), Job(name="b", throughput=curve, weight=2.0)]
    assert plan(jobs, 5, HOUR).workers == {"a": 1, "b": 4}


def test_a_transition_that_does_not_pay_is_not_made() -> None:
    """Check eq. 3's penalty: a better split pays for its transition over an hour and not over a minute."""
    jobs = [
        Job(name="a", throughput={2: 10.0, 4: 19.0}, workers=4),
        Job(name="b", throughput={2: 10.5, 4: 21.0}, workers=2),
    ]
    short = Horizon(running_seconds=60.0, transition_seconds=60.0)
    assert plan(jobs, 6, short).changed == ()
    assert plan(jobs, 6, HOUR).workers == {"a": 2, "b": 4}


def test_a_job_that_lost_a_worker_pays_wherever_it_goes() -> None:
    """Check eq. 4: the faulted job stands still anyway, so shrinking that job costs no more than keeping its size."""
    jobs = [Job(name=name, throughput={1: 10.0, 2: 20.0}, workers=2) for name in ("a", "b")]
    short = Horizon(running_seconds=60.0, transition_seconds=60.0)
    found = plan(jobs, 3, short, faulted={"b"})
    assert (found.workers, found.changed) == ({"a": 2, "b": 1}, ("b",))
    assert found.value == pytest.approx(60 * (20 + 10) - 60 * 20)


def test_the_table_knows_that_the_job_that_lost_a_worker_pays_anyway() -> None:
    jobs = [Job(name=name, throughput={1: 10.0, 2: 20.0}, workers=2) for name in ("a", "b")]
    table = build_table(jobs, 4, lambda _: Horizon(running_seconds=60.0, transition_seconds=60.0))
    assert table.after(WorkerFailed("a")).workers == {"a": 1, "b": 2}
    assert table.after(WorkerFailed("b")).workers == {"a": 2, "b": 1}


def test_of_equal_plans_the_plan_that_changes_nothing_is_taken() -> None:
    jobs = [Job(name=name, throughput={1: 5.0, 2: 10.0}, workers=1) for name in ("a", "b")]
    free = Horizon(running_seconds=60.0, transition_seconds=0.0)
    assert plan(jobs, 2, free).changed == ()


def test_no_room_means_waiting() -> None:
    jobs = [Job(name="a", throughput={8: 1.0})]
    assert plan(jobs, 7, HOUR).workers == {"a": 0}
    assert plan([], 7, HOUR).workers == {}
    assert plan([Job(name="a", throughput={})], 7, HOUR).waf == 0.0


def test_counts_are_taken_in_their_common_unit() -> None:
    jobs = [Job(name="a", throughput={16: 1.0, 24: 2.0}), Job(name="b", throughput={40: 3.0})]
    assert common_unit(jobs) == 8
    assert plan(jobs, 66, HOUR).workers == {"a": 24, "b": 40}


def test_the_expected_run_shrinks_with_the_cluster_and_with_failures() -> None:
    """Check Unicron's trace-a: 43 failures of 128 GPUs in 8 weeks, which is a failure every 31 hours."""
    weeks = 8 * 7 * 86_400.0
    seen = FailureRate(failures=43, worker_seconds=128 * weeks, prior_failures=0, prior_worker_seconds=0)
    assert seen.running_seconds(128) == pytest.approx(weeks / 43)
    assert seen.running_seconds(64) == pytest.approx(2 * weeks / 43)
    assert seen.running_seconds(128, at_most=100.0) == 100.0
    fresh = FailureRate(failures=0, worker_seconds=0.0)
    assert 0 < fresh.running_seconds(100) < math.inf
    with pytest.raises(InvalidInputError):
        FailureRate(failures=0, worker_seconds=5.0, prior_failures=0).running_seconds(4)


@pytest.mark.parametrize(
    ("jobs", "workers", "horizon", "error"),
    [
        ([Job(name="a", throughput={1: 0.0})], 4, HOUR, InvalidSpeedError),
        ([Job(name="a", throughput={1: math.inf})], 4, HOUR, InvalidSpeedError),
        ([Job(name="a", throughput={1: math.nan})], 4, HOUR, InvalidSpeedError),
        ([Job(name="a", throughput={0: 1.0})], 4, HOUR, InvalidInputError),
        ([Job(name="a", throughput={1: 1.0}, weight=-1.0)], 4, HOUR, InvalidInputError),
        ([Job(name="a", throughput={1: 1.0})] * 2, 4, HOUR, InvalidInputError),
        ([], -1, HOUR, InvalidInputError),
        ([], 4, Horizon(running_seconds=math.inf, transition_seconds=1.0), InvalidInputError),
    ],
)
def test_degenerate_input_has_a_name(
    jobs: list[Job], workers: int, horizon: Horizon, error: type[PlanningError]
) -> None:
    with pytest.raises(error):
        plan(jobs, workers, horizon)


def test_a_plan_or_an_event_of_unknown_jobs_is_refused() -> None:
    jobs = [Job(name="a", throughput={1: 1.0})]
    with pytest.raises(InvalidInputError, match="ghost"):
        plan(jobs, 4, HOUR, faulted={"ghost"})
    with pytest.raises(InvalidInputError, match="ghost"):
        build_table(jobs, 4, lambda _: HOUR).after(JobEnded("ghost"))
    with pytest.raises(InvalidInputError, match="already"):
        build_table(jobs, 4, lambda _: HOUR, arrivals=jobs)
