"""Define how many replicas an elastic job may have, and what its status says of its size and its group of ranks."""

from __future__ import annotations

from typing import Annotated

from falcon_operator.api.common import ApiStruct
from falcon_operator.api.markers import schema


class ElasticSpec(ApiStruct, frozen=True, kw_only=True):
    min_replicas: Annotated[int, schema(minimum=1, maximum=4096)]
    """The fewest replicas with which the job goes on where a node is lost and none is free. The ranks restart from
    their checkpoint with another RANK and WORLD_SIZE, so the program must be able to begin from a checkpoint of another
    world size. Ranks of falcon_torch.elastic train on without lost pods in at least so many."""

    max_replicas: Annotated[int | None, schema(minimum=1, maximum=4096)] = None
    """The most replicas that the job has when nodes are free. Default: spec.replicas, with which it begins."""

    sizes: Annotated[list[Annotated[int, schema(minimum=1, maximum=4096)]], schema(list_type="set", maxItems=64)] = []
    """The only numbers of replicas that the job may have, ascending, such as [2, 4, 8]. Default: all from minReplicas
    to maxReplicas that spec.parallelism can have."""


class ElasticStatus(ApiStruct, frozen=True, kw_only=True):
    """The size of an elastic job."""

    replicas: Annotated[int, schema(minimum=0)]
    """Replicas now."""

    wanted: Annotated[int, schema(minimum=0)]
    """Replicas that the job asks nodes for."""

    since: Annotated[str, schema(maxLength=64)] = ""
    """When it got this size, RFC 3339; empty: it began with it."""

    why: Annotated[str, schema(maxLength=256)] = ""
    """Why it has this size."""

    next: Annotated[str, schema(maxLength=512)] = ""
    """What the next change of its size waits for; empty: none is in sight."""


class GroupChangeStatus(ApiStruct, frozen=True, kw_only=True):
    """A change of the group of ranks."""

    number: Annotated[int, schema(minimum=0, format="int64")]
    """Number of the group that was formed."""

    at: Annotated[str, schema(maxLength=64)]
    """When it was formed, RFC 3339, by the clock of the first pod's node."""

    before: Annotated[int, schema(minimum=0)]
    """Ranks of the earlier group."""

    ranks: Annotated[int, schema(minimum=0)]
    """Ranks of this group."""

    lost: Annotated[list[int], schema(list_type="atomic", maxItems=16)] = []
    """Ranks whose processes were lost; the first of them."""

    joined: Annotated[list[int], schema(list_type="atomic", maxItems=16)] = []
    """Ranks whose processes have joined; the first of them."""

    what: Annotated[str, schema(maxLength=256)] = ""
    """What has happened, in words."""


class LostRankStatus(ApiStruct, frozen=True, kw_only=True):
    """A rank that was lost while the others went on."""

    rank: Annotated[int, schema(minimum=0)]
    """The rank."""

    pod: Annotated[str, schema(maxLength=253)]
    """Name of its pod."""

    node: Annotated[str, schema(maxLength=253)] = ""
    """The pod's node."""

    at: Annotated[str, schema(maxLength=64)]
    """When the others went on, RFC 3339, by the clock of the first pod's node."""

    cause: Annotated[str, schema(maxLength=64)] = ""
    """The cause as one word, for machines: ProcessKilled, ProcessCrashed or ProcessFailed; empty: not known."""

    error_class: Annotated[str, schema(maxLength=64)] = ""
    """The class of an exception that its pod printed at that time; docs/errors.md lists them."""

    why: Annotated[str, schema(maxLength=256)] = ""
    """How it was lost, in words."""


class GroupStatus(ApiStruct, frozen=True, kw_only=True):
    """The group of ranks that goes on without a lost rank (python -m falcon_torch.elastic)."""

    generation: Annotated[int, schema(minimum=0, format="int64")]
    """The generation whose ranks they are: its first group has the number 1."""

    number: Annotated[int, schema(minimum=0, format="int64")]
    """The number of the group."""

    ranks: Annotated[int, schema(minimum=0)]
    """Ranks that it has."""

    wanted: Annotated[int, schema(minimum=0)]
    """Ranks of a whole group."""

    since: Annotated[str, schema(maxLength=64)]
    """When it was formed, RFC 3339, by the clock of the first pod's node."""

    why: Annotated[str, schema(maxLength=256)] = ""
    """Why it has this size; empty: it is the first."""

    next: Annotated[str, schema(maxLength=512)] = ""
    """What the next change waits for; empty: none is in sight."""

    changes: Annotated[list[GroupChangeStatus], schema(list_type="atomic", maxItems=16)] = []
    """The newest changes, newest last."""

    lost: Annotated[list[LostRankStatus], schema(list_type="atomic", maxItems=16)] = []
    """The newest ranks that were lost, newest last."""
