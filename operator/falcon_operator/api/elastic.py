"""Define how many replicas an elastic job may have, and what its status says of its size."""

from __future__ import annotations

from typing import Annotated

from falcon_operator.api.common import ApiStruct
from falcon_operator.api.markers import schema


class ElasticSpec(ApiStruct, frozen=True, kw_only=True):
    min_replicas: Annotated[int, schema(minimum=1, maximum=4096)]
    """The fewest replicas with which the job goes on where a node is lost and none is free. The ranks restart from
    their checkpoint with another RANK and WORLD_SIZE, so the program must be able to begin from a checkpoint of another
    world size."""

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
