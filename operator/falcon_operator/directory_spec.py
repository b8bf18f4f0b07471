"""``spec.checkpoint.directory`` of a TrainingJob, as a typed value (``falcon_operator.api``)."""

from __future__ import annotations

import msgspec


class DirectorySpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A folder in each pod's memory, and where what is saved in it is copied to."""

    path: str  # in the container
    memory: str  # a quantity, of each pod
    copy_to: str  # a folder on a volume of the container's
    bandwidth: str | None = None  # a quantity of bytes a second, of each pod
