"""From what a job's ranks began again, as a part of its TrainingRun (``falcon_operator.api``)."""

from __future__ import annotations

import msgspec


class Restore(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """From what the ranks began again."""

    step: int = 0  # the last that was trained before; 0: they began anew
    own: int = 0  # ranks that found it in the memory of their own pod
    copied: int = 0  # ranks that got it from the memory of other pods
    keepers: list[str] = []  # the names of those pods
    replicas: int = 0  # ranks that got it from ranks of other pods which hold the same
    folder: int = 0  # ranks that read it from a folder
    seconds: float = 0.0  # that the slowest rank took for it; 0: not known
