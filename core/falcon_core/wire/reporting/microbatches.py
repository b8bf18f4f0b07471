"""Define the messages about movable micro-batches (docs/adr/0070): the operator's order and the script's answer.

Two files of JSON in a pod, each of which appears by rename::

    agent/microbatches           the agent's, for the script of rank 0: {"generation": …, "shares": […]}, by rank
    launch/microbatches.<local>  the script's of that rank, for the agent: ``MicrobatchReport``

A training process may write anything into the second one, so all of it is bounded.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

MAX_SHARES: Final = 1024  # ranks of a job whose micro-batches can move
MAX_PER_RANK: Final = 4096  # in the even split
MAX_TURNS: Final = 16
MAX_MICRO_NS: Final = 3_600_000_000_000
MAX_HINDRANCE: Final = 200  # characters
MOST_BYTES: Final = 4096  # of a script's file

PerRank = Annotated[int, Meta(ge=1, le=MAX_PER_RANK)]
Share = Annotated[int, Meta(ge=1, le=MAX_PER_RANK * MAX_SHARES)]


class MicrobatchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Desired state: how many micro-batches each rank of a generation computes in a step."""

    version: int = 1
    epoch: int  # the leader that wrote it
    generation: int
    shares: Annotated[list[Share], Meta(max_length=MAX_SHARES)]  # by rank


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """Since when a rank has had a share. ``since_ns``: the first step's start, by the clock of the rings' times."""

    since_ns: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    share: Share
    even: bool  # all ranks have as many


class MicrobatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's report of its micro-batches, made by its script."""

    generation: int
    per_rank: PerRank
    turns: Annotated[list[Turn], Meta(min_length=1, max_length=MAX_TURNS)]  # the newest, newest last
    # What the rank takes for one micro-batch, without the exchange of gradients; None: not known yet.
    micro_ns: Annotated[int, Meta(ge=0, le=MAX_MICRO_NS)] | None = None
    # False: that time cannot be taken, since passes contain waiting, or run on a device while the host goes on.
    timed: bool = True
    # The rank makes as many calls in an iteration, whatever its share is: it is a replica by itself. A script of an
    # earlier version says nothing of it; where it times its passes, it is one.
    same_calls: bool = False
    hindrance: Annotated[str, Meta(max_length=MAX_HINDRANCE)] = ""  # why its micro-batches cannot move


class MicroShare(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The part of it that a report carries: as of the rank's newest step.

    Where the script cannot time its passes and its calls do (``signals.attribution.pipeline_passes``), ``micro_ns`` is
    theirs.
    """

    per_rank: int
    share: int
    micro_ns: int | None = None
    timed: bool = True
    hindrance: str = ""
