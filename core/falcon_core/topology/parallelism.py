"""Convert between a rank and its coordinates along the tensor, context, expert, data and pipeline axes.

Ranks are numbered in mixed radix, the first axis of ``order`` fastest. The default is Megatron's "tp-cp-ep-dp-pp":
a tensor group's ranks are neighbours on one node, pipeline stages are farthest apart.

Experts divide the data-parallel ranks: of the ``data`` model replicas, ``expert`` consecutive ones hold different
experts, so ``data = expert × expert_data``. Dense gradients are summed over all of them (and over the context ranks,
which hold the same weights); experts' gradients over the ``expert_data`` replicas that hold the same experts.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

Ranks = npt.NDArray[np.int64]


class Axis(enum.StrEnum):
    """One kind of parallelism; EXPERT_DATA is what is left of DATA when experts are spread over it."""

    TENSOR = "Tensor"
    CONTEXT = "Context"
    EXPERT = "Expert"
    DATA = "Data"
    EXPERT_DATA = "ExpertData"
    PIPELINE = "Pipeline"


MEGATRON: Final = (Axis.TENSOR, Axis.CONTEXT, Axis.EXPERT, Axis.EXPERT_DATA, Axis.PIPELINE)


class LayoutError(ValueError):
    """The degrees do not fit each other or the number of ranks; the message names them."""


class Coordinates(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's place along each axis, from 0. ``data`` is the model replica: expert_data × expert degree + expert."""

    tensor: int
    context: int
    expert: int
    expert_data: int
    pipeline: int
    data: int


class Parallelism(msgspec.Struct, frozen=True, kw_only=True):
    """The degrees of a layout. ``data`` counts model replicas; ``expert`` divides ``data``.

    Raises LayoutError on construction where a degree is below 1, or ``expert`` does not divide ``data``.
    """

    tensor: int = 1
    context: int = 1
    expert: int = 1
    data: int = 1
    pipeline: int = 1
    order: tuple[Axis, ...] = MEGATRON

    def __post_init__(self) -> None:
        for name in ("tensor", "context", "expert", "data", "pipeline"):
            if getattr(self, name) < 1:
                raise LayoutError(f"{name} is {getattr(self, name)}, and must be at least 1")
        if self.data % self.expert:
            raise LayoutError(f"expert {self.expert} does not divide data {self.data}")
        if sorted(self.order) != sorted(MEGATRON):
            raise LayoutError(f"the order must name each of {', '.join(MEGATRON)} once")

    @property
    def world(self) -> int:
        """Return the number of ranks."""
        return self.tensor * self.context * self.data * self.pipeline

    @property
    def expert_data(self) -> int:
        """Return the number of replicas that hold the same experts."""
        return self.data // self.expert

    def degree(self, axis: Axis) -> int:
        """Return the number of ranks that differ along ``axis`` alone."""
        return {
            Axis.TENSOR: self.tensor,
            Axis.CONTEXT: self.context,
            Axis.EXPERT: self.expert,
            Axis.DATA: self.data,
            Axis.EXPERT_DATA: self.expert_data,
            Axis.PIPELINE: self.pipeline,
        }[axis]

    def coordinates(self, rank: int) -> Coordinates:
        """Return the coordinates of ``rank``. Raises LayoutError beyond the world."""
        if not 0 <= rank < self.world:
            raise LayoutError(f"rank {rank} of a world of {self.world}")
        place = {}
        for axis in self.order:
            rank, place[axis] = divmod(rank, self.degree(axis))
        return Coordinates(
            tensor=place[Axis.TENSOR],
            context=place[Axis.CONTEXT],
            expert=place[Axis.EXPERT],
            expert_data=place[Axis.EXPERT_DATA],
            pipeline=place[Axis.PIPELINE],
            data=place[Axis.EXPERT_DATA] * self.expert + place[Axis.EXPERT],
        )

    def rank(self, *, tensor: int = 0, context: int = 0, data: int = 0, pipeline: int = 0) -> int:
        """Return the rank at these coordinates; ``data`` is the model replica. Raises LayoutError beyond a degree."""
        for name, at, degree in (
            ("tensor", tensor, self.tensor),
            ("context", context, self.context),
            ("data", data, self.data),
            ("pipeline", pipeline, self.pipeline),
        ):
            if not 0 <= at < degree:
                raise LayoutError(f"{name} {at} of {degree}")
        expert_data, expert = divmod(data, self.expert)
        place = {
            Axis.TENSOR: tensor,
            Axis.CONTEXT: context,
            Axis.EXPERT: expert,
            Axis.EXPERT_DATA: expert_data,
            Axis.PIPELINE: pipeline,
        }
        rank, stride = 0, 1
        for axis in self.order:
            rank += place[axis] * stride
            stride *= self.degree(axis)
        return rank

    def group_table(self, axis: Axis) -> Ranks:
        """Return all communicators of ``axis`` as rows of ranks: [groups, members], members in the order of the axis.

        DATA is the group that dense gradients are reduced over: the context ranks of all replicas (context fastest).
        Rows are ordered by their first rank.
        """
        slowest_first = tuple(reversed(self.order))
        grid = np.arange(self.world, dtype=np.int64).reshape([self.degree(each) for each in slowest_first])
        inner = (Axis.EXPERT_DATA, Axis.EXPERT, Axis.CONTEXT) if axis is Axis.DATA else (axis,)
        places = [slowest_first.index(each) for each in inner]
        rows = np.moveaxis(grid, places, range(-len(places), 0))
        table = rows.reshape(-1, math.prod(grid.shape[place] for place in places))
        return table[np.argsort(table[:, 0], kind="stable")]

    def replica_table(self) -> Ranks:
        """Return the ranks of each stage of each replica of the model: [data, pipeline, tensor × context]."""
        slowest_first = tuple(reversed(self.order))
        grid = np.arange(self.world, dtype=np.int64).reshape([self.degree(each) for each in slowest_first])
        wanted = (Axis.EXPERT_DATA, Axis.EXPERT, Axis.PIPELINE, Axis.CONTEXT, Axis.TENSOR)
        return grid.transpose([slowest_first.index(each) for each in wanted]).reshape(self.data, self.pipeline, -1)

    def groups(self, axis: Axis) -> list[tuple[int, ...]]:
        """Return ``group_table`` as plain tuples."""
        return [tuple(row) for row in self.group_table(axis).tolist()]


def derive(
    world: int,
    *,
    tensor: int = 1,
    context: int = 1,
    expert: int = 1,
    pipeline: int = 1,
    order: Sequence[Axis] = MEGATRON,
) -> Parallelism:
    """Derive the layout of ``world`` ranks: the data-parallel degree is what the others leave over.

    Raises LayoutError where they do not divide the world.
    """
    for name, degree in (("tensor", tensor), ("context", context), ("expert", expert), ("pipeline", pipeline)):
        if degree < 1:
            raise LayoutError(f"{name} is {degree}, and must be at least 1")
    inner = tensor * context * pipeline
    if world < inner or world % inner:
        raise LayoutError(f"tensor {tensor} × context {context} × pipeline {pipeline} does not divide {world} ranks")
    return Parallelism(
        tensor=tensor,
        context=context,
        expert=expert,
        data=world // inner,
        pipeline=pipeline,
        order=tuple(order),
    )
