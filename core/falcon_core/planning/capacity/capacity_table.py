"""Compute ahead the capacity plan for each event that may come next.

A failure is then answered by a look-up (Unicron §5.2). Only its benchmark calls it yet.

For every single event (a worker of job i fails, an idle worker fails, workers join, job i ends, a known job arrives)
the table holds the assignment that ``capacity.plan`` would compute. It is built from the programs of all prefixes and
all suffixes of the list of jobs: replacing or leaving out job i then costs one job's step and one sum,

    max_j [S(i−1, j) ⊕ G'(t_i)] + R(i+1, n' − j),

instead of a program of its own. D_running depends on n', so each of three cluster sizes (smaller, same, larger) has its
own programs. The whole table takes the work of three sizes, and not of two programs for every job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from falcon_core.planning.capacity.capacity import (
    Assignment,
    Horizon,
    Job,
    assignment,
    check,
    choice,
    common_unit,
    options_of,
    prefixes,
    step,
    trace,
)
from falcon_core.planning.capacity.capacity_prune import Options, Values
from falcon_core.planning.errors import InvalidInputError


class WorkerFailed(msgspec.Struct, frozen=True):
    """A job lost a worker (a whole node's workers, if the table was built for nodes). None: an idle worker failed."""

    job: str | None


class WorkersJoined(msgspec.Struct, frozen=True):
    """A repaired or a new node is there."""


class JobEnded(msgspec.Struct, frozen=True):
    """A job is complete, or gone."""

    job: str


class JobArrived(msgspec.Struct, frozen=True):
    """A job that the table knew of as a possible arrival."""

    job: str


Event = WorkerFailed | WorkersJoined | JobEnded | JobArrived


class Table(msgspec.Struct, frozen=True):
    """The plan after each single event, from one present."""

    workers: int
    workers_per_node: int
    plans: dict[Event, Assignment]

    def after(self, event: Event) -> Assignment:
        """Return the plan for this event. Raises InvalidInputError for an event that the table was not built for."""
        found = self.plans.get(event)
        if found is None:
            raise InvalidInputError(f"the table has no plan for {event}")
        return found


def build_table(
    jobs: Sequence[Job],
    workers: int,
    horizon: Callable[[int], Horizon],
    *,
    workers_per_node: int = 1,
    arrivals: Sequence[Job] = (),
) -> Table:
    """Plan ahead for every single event; ``horizon(n')`` gives D_running and D_transition of a cluster of n' workers.

    A failure or a join changes the cluster by ``workers_per_node``. Each plan is optimal, as ``capacity.plan`` is.
    Raises InvalidInputError or InvalidSpeedError.
    """
    if workers_per_node < 1:
        raise InvalidInputError(f"{workers_per_node} workers to a node")
    if {job.name for job in arrivals} & {job.name for job in jobs}:
        raise InvalidInputError("a job that may arrive is already there")
    # One check here: the plans below share its input.
    check([*jobs, *arrivals], workers, horizon(workers))
    unit = common_unit([*jobs, *arrivals])
    plans: dict[Event, Assignment] = {}

    if workers >= workers_per_node:
        fewer = workers - workers_per_node
        # The programs of a cluster size are computed once. Each event then replaces one job in them.
        smaller = _Programs(jobs, fewer, horizon(fewer), unit)
        plans[WorkerFailed(None)] = smaller.plan()
        for index, job in enumerate(jobs):
            plans[WorkerFailed(job.name)] = smaller.plan_with(index, job, faulted=True)
    same = _Programs(jobs, workers, horizon(workers), unit)
    for index, job in enumerate(jobs):
        plans[JobEnded(job.name)] = same.plan_with(index, None)
    for job in arrivals:
        plans[JobArrived(job.name)] = same.plan_with(len(jobs), job)
    more = workers + workers_per_node
    plans[WorkersJoined()] = _Programs(jobs, more, horizon(more), unit, both_ways=False).plan()
    return Table(workers, workers_per_node, plans)


class _Programs:
    """The dynamic programs of one cluster size: forward over the first i jobs, backward over the last."""

    def __init__(
        self, jobs: Sequence[Job], workers: int, horizon: Horizon, unit: int, *, both_ways: bool = True
    ) -> None:
        check(jobs, workers, horizon)
        self.jobs, self.horizon, self.unit, self.units = list(jobs), horizon, unit, workers // unit
        self.options = [options_of(job, horizon, unit) for job in jobs]
        self.forward = prefixes(self.options, self.units)
        self.backward: list[Values] = []  # [i]: the value of the last i jobs
        if both_ways:
            self.backward = prefixes(self.options[::-1], self.units)

    def plan(self) -> Assignment:
        """Plan for the case that no job lost a worker: the program's own answer."""
        return assignment(
            self.jobs, trace(self.options, self.forward, self.units), self.unit, self.horizon, frozenset()
        )

    def plan_with(self, index: int, job: Job | None, *, faulted: bool = False) -> Assignment:
        """Plan with job ``index`` replaced by ``job`` (added where there is none at ``index``), or left out if None."""
        before, after = self.options[:index], self.options[index + 1 :]
        tail = self.backward[len(after)]
        here = self.forward[index]
        mine: Options | None = None
        if job is not None:
            mine = options_of(job, self.horizon, self.unit, faulted=faulted)
            here = step(here, mine)
        # Both tables are there already: of a single change only this job's own step is computed.
        split = int(np.argmax(here + tail[::-1]))  # units for the first jobs, up to and with this one
        chosen: list[int] = []
        left = split
        if mine is not None:
            chosen.append(choice(self.forward[index], mine, left))
            left -= chosen[-1]
        first = trace(before, self.forward, left)
        last = trace(after[::-1], self.backward, self.units - split)[::-1]
        jobs = [*self.jobs[:index], *([] if job is None else [job]), *self.jobs[index + 1 :]]
        lost = frozenset({job.name}) if job is not None and faulted else frozenset[str]()
        return assignment(jobs, [*first, *chosen, *last], self.unit, self.horizon, lost)
