"""A job and what its agents report, in words that both codes under comparison read: plain values and wire messages."""

from __future__ import annotations

from pathlib import Path

import msgspec

from falcon_core.wire.messages import Summary

JOB_FILE = "job.json"


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that runs; its replica is its place in the list."""

    name: str
    uid: str
    node: str
    ip: str


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose first generation runs."""

    name: str
    namespace: str
    uid: str
    procs: int  # ranks of a pod
    tensor: int
    pipeline: int
    pods: list[Pod]
    looks: list[str]  # file names, in their order
    running_since: float  # unix seconds


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """The reports that there are to see at one moment."""

    what: str
    now: float  # unix seconds
    monotonic: float  # seconds, the operator's clock
    reports: list[Summary]  # by replica
    received_at: float  # of all reports, on the operator's clock


def write(path: Path, value: Job | Look) -> None:
    path.write_bytes(msgspec.json.encode(value))


def read_job(folder: Path) -> Job:
    return msgspec.json.decode((folder / JOB_FILE).read_bytes(), type=Job)


def read_look(folder: Path, name: str) -> Look:
    return msgspec.json.decode((folder / name).read_bytes(), type=Look)
