"""Keep recorded runs of real jobs: what the anomaly service was sent, and what was true.

A recording is two files of one name. ``NAME.lane.xz`` holds the messages of the gateway's lane of series as they came,
byte for byte, and the findings of the agents' reports. ``NAME.json`` holds the truth, and is written last: a recording
without it does not exist.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from falcon_core.wire.reporting.anomalies import Anomaly

FOLDER: Final = Path(__file__).with_name("recordings")
LANE, TRUTH = ".lane.xz", ".json"


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One message of the lane."""

    at_ms: int  # when it came, since the job's start
    chunk: bytes  # the gateway's message, as the service receives it


class Findings(msgspec.Struct, frozen=True, array_like=True):
    """What an agent's report said of its own ranks, when that had changed."""

    at_ms: int
    pod_uid: str
    anomalies: list[Anomaly]


class Lane(msgspec.Struct, frozen=True):
    """All that was heard of one job, in the order in which it came."""

    messages: list[Message]
    findings: list[Findings]


class Truth(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What was true of a run, and where it was made."""

    name: str
    group: str  # of the table of scenes: learn, fault, healthy or quiet
    variant: str  # what the training program does besides training
    fault: str  # "": none
    rank: int | None  # that the fault is on; None: on no rank alone
    metrics: list[str]  # of which each names the fault rightly; a volume's path is not part of a name
    begin_seconds: float | None  # of the fault, since the job's start
    seconds: float  # recorded
    ranks: int
    date: str
    commit: str
    machine: str
    load: list[float]  # the machine's load average of a minute at the start, at the fault's begin, and at the end
    looked_at: bool = False  # while a detector was changed


def save(folder: Path, truth: Truth, lane: Lane) -> None:
    """Write a recording; when the process ends in the middle of it, there is none."""
    _put(folder / f"{truth.name}{LANE}", lzma.compress(msgspec.msgpack.encode(lane)))
    _put(folder / f"{truth.name}{TRUTH}", msgspec.json.format(msgspec.json.encode(truth)) + b"\n")


def _put(path: Path, content: bytes) -> None:
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.write_bytes(content)
        fresh.rename(path)
    finally:
        fresh.unlink(missing_ok=True)


def load(folder: Path, name: str) -> tuple[Truth, Lane]:
    """Read a recording. Raises OSError where there is none, and msgspec.DecodeError for what is none."""
    truth = msgspec.json.decode((folder / f"{name}{TRUTH}").read_bytes(), type=Truth)
    lane = msgspec.msgpack.decode(lzma.decompress((folder / f"{name}{LANE}").read_bytes()), type=Lane)
    return truth, lane


def names(folder: Path) -> list[str]:
    """Return the names of all recordings, sorted."""
    return sorted(path.name.removesuffix(TRUTH) for path in folder.glob(f"*{TRUTH}") if not path.name.startswith("."))


def load_all(folder: Path = FOLDER) -> Iterator[tuple[Truth, Lane]]:
    """Yield all recordings, sorted by their names."""
    for name in names(folder):
        yield load(folder, name)
