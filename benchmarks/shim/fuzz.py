"""What a training process may write into its ring, by chance: damaged headers, records of noise, files that change.

    make venv && python -m benchmarks.shim.fuzz --seconds 600            # as many rounds as fit, from seed 0 on
    make venv && python -m benchmarks.shim.fuzz --seed 4711 --rounds 1   # one of them again

A round writes rings of an invented job, spoils them between the agent's reads, and asks the agent's tracker for
everything that it reports: signals, what the next agent has to know, and the report's bytes. The records' checks are
right in most rounds, since the reader throws away all others before anything else sees them. A finding is an exception
that ends the agent, one that is caught because the records make no sense (a defect all the same), a read that takes
longer than ``MOST_SECONDS``, or memory that grows beyond ``MOST_MIB``. Exit code 1 where there is one.

The control file's readers are the ranks: ``shim/tests/hooks/control_fuzz.cc`` does the same to them.
"""

from __future__ import annotations

import argparse
import collections
import os
import struct
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Final

import numpy as np
import structlog

from falcon_agent.rings.tracker import Tracker
from falcon_core.wire import ring
from falcon_core.wire.launcher.launch import RINGS_DIR
from falcon_core.wire.reporting.messages import Summary
from falcon_core.wire.reporting.reports import decode_summary, encode_summary

MOST_SECONDS: Final = 5.0  # of CPU, for a read
MOST_MIB: Final = 300.0  # that the process may grow by over a run
CAPACITY: Final = 4096
RANKS: Final = 3
STEPS: Final = 6  # reads of a round
_MS: Final = 1_000_000
_EXTREMES: Final = (0, 1, 2, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 59)
_IMPOSSIBLE: Final = (1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # the reader refuses most of them at once
_FIELDS: Final = tuple(name for name in ring.RECORD_DTYPE.names or () if name not in ("seq", "check"))


class Findings:
    """What was found, by kind, with the seeds of the first rounds that show it."""

    def __init__(self) -> None:
        self.seeds: dict[str, list[int]] = collections.defaultdict(list)
        self.seed = 0

    def add(self, kind: str) -> None:
        if kind not in self.seeds:
            print(f"seed {self.seed}: {kind}", file=sys.stderr)
        if len(self.seeds[kind]) < 5 and self.seed not in self.seeds[kind]:
            self.seeds[kind].append(self.seed)

    def caught(self, _logger: object, _method: str, event: dict[str, object]) -> dict[str, object]:
        """Note what the tracker has caught: a processor of structlog."""
        if event.get("event") == "a ring's records cannot be followed":
            error = sys.exc_info()[1]
            self.add(f"caught: {_place(error)}" if error is not None else "caught")
        raise structlog.DropEvent


def _place(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno} ({error})"


def job(rng: np.random.Generator, count: int) -> ring.RecordArray:
    """Return the calls of a rank of an invented job: a cycle that repeats, with sizes that vary in some jobs."""
    period = int(rng.integers(1, 12))
    records = np.zeros(count, dtype=ring.RECORD_DTYPE)
    place = np.arange(count) % period
    records["op"] = rng.integers(1, 12, period)[place]
    records["comm"] = rng.integers(1, 4, period)[place]
    records["bytes"] = rng.integers(1, 1 << 24, period)[place]
    if rng.random() < 0.4:
        records["bytes"] += rng.integers(0, 1 << 16, count).astype(np.uint64)
    for comm in np.unique(records["comm"]).tolist():
        mine = records["comm"] == comm
        records["comm_seq"][mine] = np.arange(int(mine.sum()))
    records["kind"] = rng.choice([ring.Kind.BLOCKING, ring.Kind.ENQUEUED])
    took = rng.integers(1, 20, count) * _MS
    records["t_start_ns"] = np.cumsum(took + rng.integers(1, 20, count) * _MS)
    records["duration_ns"] = np.where(records["kind"] == ring.Kind.BLOCKING, took, 0)
    return records


def spoil(rng: np.random.Generator, records: ring.RecordArray) -> ring.RecordArray:
    """Change some fields of some records to extremes, noise, or another record's value."""
    spoilt = records.copy()
    for _ in range(int(rng.integers(0, 6))):
        name = str(rng.choice(_FIELDS))
        rows = rng.random(len(spoilt)) < rng.choice([1 / len(spoilt), 0.01, 0.3, 1.0])
        column, many = spoilt[name], int(rows.sum())
        width = 8 * column.dtype.itemsize
        match int(rng.integers(3)):
            case 0:
                extremes = _IMPOSSIBLE if rng.random() < 0.1 else _EXTREMES
                values = np.full(many, extremes[int(rng.integers(len(extremes)))] & ((1 << width) - 1), np.uint64)
            case 1:
                values = rng.integers(0, 1 << min(63, width), many, dtype=np.uint64)
            case _:
                values = column[rng.integers(0, len(spoilt), many)].astype(np.uint64)
        column[rows] = values.astype(f"<u{column.dtype.itemsize}").view(column.dtype)
    return spoilt


def header(rank: int, head: int) -> bytearray:
    """Return the header of a good ring with counters."""
    about = ring.RingHeader(
        capacity=CAPACITY, pid=100 + rank, generation=1, rank=rank, world_size=RANKS, local_rank=rank,
        start_unix_ns=1_700_000_000_000_000_000, start_ns=12_345, head=head,
    )  # fmt: skip
    raw = bytearray(ring.pack_header(about))
    struct.pack_into("<QII", raw, 128, ring.HEADER_BYTES + CAPACITY * ring.RECORD_BYTES, 64, ring.COUNTER_BYTES)
    return raw


def damaged(rng: np.random.Generator, raw: bytearray) -> bytes:
    """Change bytes of some files, in the header or anywhere, and cut a few files off."""
    if rng.random() < 0.1:
        at = rng.integers(0, int(rng.choice([256, len(raw)])), 8)
        for place in at.tolist():
            raw[place] = int(rng.integers(256))
    if rng.random() < 0.05:
        del raw[int(rng.integers(len(raw))) :]
    return bytes(raw)


def play(rng: np.random.Generator, folder: Path, findings: Findings) -> None:
    """Play a round."""
    rings = folder / RINGS_DIR
    rings.mkdir(parents=True)
    names = [f"g1-r{rank}-{100 + rank}.ring" for rank in range(RANKS)]
    calls = [job(rng, CAPACITY) for _ in names]
    tracker = Tracker(folder, monotonic_ns=lambda: int(rng.integers(1, 1 << 60)))
    for step in range(1, STEPS + 1):
        for rank, name in enumerate(names):
            records = spoil(rng, calls[rank]) if rank or rng.random() < 0.3 else calls[rank]
            records["seq"] = np.arange(1, CAPACITY + 1)
            records["check"] = ring.checks(records)
            raw = header(rank, CAPACITY * step // STEPS) + records.tobytes() + rng.bytes(64 * ring.COUNTER_BYTES)
            _write(rings / name, damaged(rng, raw), anew=rng.random() < 0.05)
        _read(tracker, names, step, findings)


def _read(tracker: Tracker, names: list[str], step: int, findings: Findings) -> None:
    """Let the tracker read, remember and report."""
    began = time.process_time()
    tracker.poll(names)
    if time.process_time() - began > MOST_SECONDS:
        findings.add(f"a read takes more than {MOST_SECONDS:.0f} s")
    ranks = tracker.signals(1)
    Tracker(Path("/nowhere"), tracker.memory()).poll([])
    summary = Summary(pod_uid="p", sequence=step, unix_ns=1, generation=1, ranks=ranks)
    try:
        decode_summary(encode_summary(summary, range(RANKS)), "p")
    except ValueError as error:
        findings.add(f"a report that cannot be read: {error}")


def _write(path: Path, raw: bytes, *, anew: bool) -> None:
    """Write in place, as a training process does, or put another file there."""
    if anew:
        path.unlink(missing_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.pwrite(file, raw, 0)
    os.ftruncate(file, len(raw))
    os.close(file)


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shim.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    parser.add_argument("--rounds", type=int, help="how many (default: as many as fit)")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="after which no round begins (default: %(default)s)"
    )
    options = parser.parse_args()
    findings = Findings()
    structlog.configure(processors=[findings.caught])
    before, ends, seed = resident_mib(), time.monotonic() + options.seconds, options.seed
    while (options.rounds is None or seed < options.seed + options.rounds) and time.monotonic() < ends:
        findings.seed = seed
        with tempfile.TemporaryDirectory(prefix="falcon-fuzz-") as folder, np.errstate(all="ignore"):
            try:
                play(np.random.default_rng(seed), Path(folder), findings)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
                findings.add(f"ended the agent: {_place(error)}")
        seed += 1
    if resident_mib() - before > MOST_MIB:
        findings.add(f"memory grew by {resident_mib() - before:.0f} MiB")
    print(f"{seed - options.seed} rounds from seed {options.seed} on, {resident_mib() - before:.0f} MiB more")
    for kind, seeds in sorted(findings.seeds.items()):
        print(f"- {kind}: seeds {', '.join(map(str, seeds))}")
    return 1 if findings.seeds else 0


if __name__ == "__main__":
    raise SystemExit(main())
