"""A job and what its agents report, in words that both codes under comparison read: plain values and wire messages.

The two codes encode reports differently on the wire, so a look's file holds them as objects with named fields.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from falcon_core.wire.reporting.messages import CommSignals, PairSignals, RankSignals, Summary

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


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A look with the reports as objects."""

    what: str
    now: float
    monotonic: float
    reports: list[dict[str, Any]]
    received_at: float


def write_job(path: Path, job: Job) -> None:
    path.write_bytes(msgspec.json.encode(job))


def write_look(path: Path, look: Look, pods: list[Pod]) -> None:
    reports = [_named(report, pod) for report, pod in zip(look.reports, pods, strict=True)]
    path.write_bytes(msgspec.json.encode({**msgspec.structs.asdict(look), "reports": reports}))


def read_job(folder: Path) -> Job:
    return msgspec.json.decode((folder / JOB_FILE).read_bytes(), type=Job)


def read_look(folder: Path, name: str) -> Look:
    stored = msgspec.json.decode((folder / name).read_bytes(), type=_Stored)
    return Look(
        what=stored.what,
        now=stored.now,
        monotonic=stored.monotonic,
        reports=[_report(fields) for fields in stored.reports],
        received_at=stored.received_at,
    )


def _named(report: Summary, pod: Pod) -> dict[str, Any]:
    ranks = [
        {
            **msgspec.structs.asdict(rank),
            "comms": [msgspec.structs.asdict(comm) for comm in rank.comms],
            "pairs": [msgspec.structs.asdict(pair) for pair in rank.pairs],
        }
        for rank in report.ranks
    ]
    return {**msgspec.structs.asdict(report), "pod_name": pod.name, "node": pod.node, "ranks": ranks}


def _report(fields: dict[str, Any]) -> Summary:
    return msgspec.structs.replace(
        msgspec.convert({**fields, "ranks": []}, Summary), ranks=[_rank(rank) for rank in fields["ranks"]]
    )


def _rank(fields: dict[str, Any]) -> RankSignals:
    return msgspec.structs.replace(
        msgspec.convert({**fields, "comms": [], "pairs": []}, RankSignals),
        comms=[CommSignals(**comm) for comm in fields["comms"]],
        pairs=[PairSignals(**pair) for pair in fields["pairs"]],
    )
