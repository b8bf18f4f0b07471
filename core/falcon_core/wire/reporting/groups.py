"""Define the report of a group of ranks that goes on without a lost one (docs/adr/0153).

Each pod's own launcher (``falcon_torch.elastic``) writes it into ``launch/group.json``, and the agent reports it. A
training process may have written the file instead: everything is bounded.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

MOST_BYTES: Final = 16 << 10  # of a launcher's file
MAX_LIST: Final = 16
MAX_CHANGES: Final = 8
MAX_HOW: Final = 16

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
UnixMs = Annotated[int, Meta(ge=0, le=((1 << 63) - 1) // 1_000_000)]
Small = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]  # such numbers stand in the status, with the format int32
Code = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Ranks = Annotated[list[Small], Meta(max_length=MAX_LIST)]


class LostRank(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A process that has lost its place in the group."""

    rank: Small
    process: Small  # its number, which its launcher has given it; earlier launchers: the kernel's in its pod
    # Gone (its connection ended), Late (the others waited for it too long), CutOff, Replaced; a later launcher may know
    # more.
    how: Annotated[str, Meta(max_length=MAX_HOW)] = ""


class GroupChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How a group differs from its predecessor. Lists hold the first entries alone."""

    number: Count
    unix_ms: UnixMs  # when it was formed, by the clock of the first pod's node
    before: Small  # ranks of the earlier group; 0: there was none
    size: Small
    lost: Annotated[list[LostRank], Meta(max_length=MAX_LIST)] = []
    joined: Ranks = []


class RankGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The present group. The first pod's launcher alone knows it."""

    number: Count
    wanted: Small  # ranks of a whole group
    size: Small
    unix_ms: UnixMs  # when it was formed
    missing: Ranks = []
    late: Ranks = []  # members for which the next group waits
    joining: Ranks = []  # other processes that wait for it
    changes: Annotated[list[GroupChange], Meta(max_length=MAX_CHANGES)] = []  # the newest, newest last


class RankEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The end of a rank's process, as its launcher saw it."""

    rank: Small
    process: Small
    code: Code  # an exit code, or a signal's number below 0
    unix_ms: UnixMs = 0


class LaunchGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a pod's own launcher."""

    generation: Count
    group: RankGroup | None = None
    ends: Annotated[list[RankEnd], Meta(max_length=MAX_LIST)] = []  # of ranks of this pod; the newest, newest last


class GroupReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The same as it crosses the bus, of the generation that its report is of."""

    group: RankGroup | None = None
    ends: Annotated[list[RankEnd], Meta(max_length=MAX_LIST)] = []


def report_of(said: LaunchGroup | None, generation: int) -> GroupReport | None:
    """Return the report made from the launcher's file; None: none of this generation."""
    if said is None or said.generation != generation:
        return None
    return GroupReport(said.group, said.ends)
