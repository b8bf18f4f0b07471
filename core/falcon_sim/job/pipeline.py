"""Compute when each stage of a pipeline runs each pass: 1F1B and interleaved schedules.

The schedules are PipeDream-Flush and Megatron's virtual stages. A schedule is the order of passes on each stage, and
the passes that each one waits for. It is computed once; playing it out with the passes' durations is then a handful of
vector operations a pass, over all replicas and iterations at once.

With equal stages, transfers that take no time and m micro-batches, 1F1B takes (m + p − 1)(f + b), the interleaved
schedule with v chunks a stage (m + (p − 1)/v)(f + b), where f and b are a whole stage's times for one micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class ScheduleError(ValueError):
    """The schedule does not exist for these numbers; the message has the reason."""


class Pass(NamedTuple):
    """One forward or backward pass of a micro-batch through one chunk of a stage."""

    stage: int
    chunk: int
    microbatch: int
    forward: bool


class Step(NamedTuple):
    """A pass, its predecessor on the same stage and the pass whose result it receives; indices into the schedule."""

    work: Pass
    before: int  # −1: the stage's first
    source: int  # −1: needs nothing
    received: bool  # the source lies on another stage: a transfer comes in between


class Schedule(msgspec.Struct, frozen=True):
    """All passes of one replica in an order in which each comes after what it waits for."""

    stages: int
    chunks: int
    microbatches: int
    steps: tuple[Step, ...]

    def of_stage(self, stage: int) -> list[int]:
        """Return the stage's passes in the order in which it makes them, as indices into ``steps``."""
        return [index for index, step in enumerate(self.steps) if step.work.stage == stage]


def one_f_one_b(stages: int, microbatches: int) -> Schedule:
    """Make the 1F1B schedule: fill the pipeline, then alternate, then drain."""
    orders = []
    for stage in range(stages):
        warm = min(stages - stage - 1, microbatches)
        order = [Pass(stage, 0, number, True) for number in range(warm)]
        for number in range(microbatches - warm):
            order += [Pass(stage, 0, warm + number, True), Pass(stage, 0, number, False)]
        order += [Pass(stage, 0, number, False) for number in range(microbatches - warm, microbatches)]
        orders.append(order)
    return _linked(stages, 1, microbatches, orders)


def interleaved(stages: int, chunks: int, microbatches: int) -> Schedule:
    """Make the schedule of 1F1B over ``chunks`` model chunks a stage: a smaller bubble for more transfers.

    Raises ScheduleError where the micro-batches are no multiple of the stages.
    """
    if chunks == 1 or stages == 1:
        return one_f_one_b(stages, microbatches)
    if microbatches % stages:
        raise ScheduleError(f"{microbatches} micro-batches are no multiple of {stages} stages")
    total = microbatches * chunks

    def at(index: int, *, forward: bool, stage: int) -> Pass:
        group, place = divmod(index, stages * chunks)
        chunk = place // stages
        return Pass(stage, chunk if forward else chunks - 1 - chunk, group * stages + place % stages, forward)

    orders = []
    for stage in range(stages):
        # Each stage first fills the pipeline behind it, then alternates forward and backward, then drains.
        warm = min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)
        order = [at(index, forward=True, stage=stage) for index in range(warm)]
        for index in range(total - warm):
            order += [at(warm + index, forward=True, stage=stage), at(index, forward=False, stage=stage)]
        order += [at(index, forward=False, stage=stage) for index in range(total - warm, total)]
        orders.append(order)
    return _linked(stages, chunks, microbatches, orders)


def _source(work: Pass, stages: int, chunks: int) -> Pass | None:
    stage, chunk, number, forward = work
    if forward:
        if stage > 0:
            return Pass(stage - 1, chunk, number, True)
        return Pass(stages - 1, chunk - 1, number, True) if chunk > 0 else None
    if stage < stages - 1:
        return Pass(stage + 1, chunk, number, False)
    return Pass(0, chunk + 1, number, False) if chunk < chunks - 1 else Pass(stage, chunk, number, True)


def _linked(stages: int, chunks: int, microbatches: int, orders: list[list[Pass]]) -> Schedule:
    """Put the stages' orders into a single order in which sources come first. Raises ScheduleError for a circle."""
    places: dict[Pass, int] = {}
    steps: list[Step] = []
    reached = [0] * stages
    last = [-1] * stages
    while len(steps) < sum(map(len, orders)):
        before = len(steps)
        for stage, order in enumerate(orders):
            for work in order[reached[stage] :]:
                source = _source(work, stages, chunks)
                # The stage waits for its neighbour here: go on with the other stages first.
                if source is not None and source not in places:
                    break
                steps.append(_step(work, last[stage], source, places))
                places[work] = last[stage] = len(steps) - 1
                reached[stage] += 1
        if len(steps) == before:
            raise ScheduleError("the schedule waits for itself")
    return Schedule(stages, chunks, microbatches, tuple(steps))


def _step(work: Pass, before: int, source: Pass | None, places: dict[Pass, int]) -> Step:
    if source is None:
        return Step(work, before, -1, received=False)
    return Step(work, before, places[source], received=source.stage != work.stage)


class Played(msgspec.Struct, frozen=True):
    """A schedule with times, seconds since the iteration began: [steps, ..., replicas]."""

    ready: Floats  # the stage was free
    starts: Floats  # and the input had come
    ends: Floats


def play(
    schedule: Schedule,
    duration: Callable[[Pass], Floats],
    transfer: Callable[[Pass, Pass], Floats],
    *,
    lockstep: int = 1,
) -> Played:
    """Compute the times of all passes. ``duration(pass)`` and ``transfer(source, pass)`` give seconds, [..., replicas].

    ``lockstep``: so many neighbouring replicas meet in every pass (experts spread over them) and end it together.
    """
    ready, starts, ends = np.zeros((3, len(schedule.steps), *duration(schedule.steps[0].work).shape))
    for place, step in enumerate(schedule.steps):
        spent = duration(step.work)
        if step.before >= 0:
            ready[place] = ends[step.before]
        start = free = ready[place]
        if step.source >= 0:
            arrival = ends[step.source]
            # Only a pass on another stage needs a transfer.
            if step.received:
                arrival = arrival + transfer(schedule.steps[step.source].work, step.work)
            start = np.maximum(free, arrival)
        end = start + spent
        # Replicas that share experts wait for each other in each pass.
        if lockstep > 1:
            grouped = end.reshape(*end.shape[:-1], -1, lockstep)
            end = np.broadcast_to(grouped.max(axis=-1, keepdims=True), grouped.shape).reshape(end.shape)
        starts[place] = start
        ends[place] = end
    return Played(ready, starts, ends)
