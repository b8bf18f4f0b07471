"""Define the keys of the work queue: the names of Falcon's objects."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Key(NamedTuple):
    """The name of a TrainingJob or of a WarmPool; a pool has no namespace."""

    kind: Literal["TrainingJob", "WarmPool"]
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


def job_key(namespace: str, name: str) -> Key:
    return Key("TrainingJob", namespace, name)


def pool_key(name: str) -> Key:
    return Key("WarmPool", "", name)
