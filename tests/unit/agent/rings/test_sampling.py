"""Which cycles the device times at the agent's request.

These are the cycles of ranks whose calls return when they are enqueued, and of no other ranks.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from falcon_agent.launch.run_dir import RunDir
from falcon_agent.rings.tracker import Tracker
from falcon_core.signals.rank.profiling import SAMPLE_EVERY
from falcon_core.wire.launcher.control import CONTROL_BYTES, SAMPLING_OFFSET, Mode, pack_control
from falcon_core.wire.launcher.launch import CONTROL_FILE, RINGS_DIR
from falcon_core.wire.ring import Kind
from tests.unit.agent.ring_files import write_ring
from tests.unit.signals.streams import Script, ddp

HEAD_OFFSET = 64  # of a ring's header: how many records were written


@pytest.mark.parametrize(("kind", "calls"), [(Kind.ENQUEUED, 5), (Kind.BLOCKING, 0)])
def test_the_cycle_of_enqueuing_ranks_is_sampled(tmp_path: Path, kind: Kind, calls: int) -> None:
    script = Script(jitter=0.02)
    script.cycle(ddp(5), times=40)
    records = script.records
    records["kind"] = kind
    (tmp_path / RINGS_DIR).mkdir(parents=True)
    write_ring(tmp_path / RINGS_DIR / "g1-r0-100.ring", records, rank=0, world_size=1)
    tracker = Tracker(tmp_path)
    assert tracker.device_cycle_calls() == 0, "nothing is known yet"
    tracker.poll(["g1-r0-100.ring"])
    assert tracker.device_cycle_calls() == calls


def test_sampling_is_written_in_place(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.write_control()
    before = (tmp_path / CONTROL_FILE).stat().st_ino
    run_dir.sample(20, 98, 1000)
    control = tmp_path / CONTROL_FILE
    assert (control.stat().st_ino, control.stat().st_size) == (before, CONTROL_BYTES), "ranks have this file mapped"
    assert struct.unpack_from("<III", control.read_bytes(), SAMPLING_OFFSET) == (20, 98, 1000)
    assert control.read_bytes() == pack_control(Mode.TRACK, 1, sample_every=20, cycle_calls=98, verify_every=1000)
    run_dir.sample(20, 98)
    assert control.read_bytes() == pack_control(Mode.TRACK, 1, sample_every=20, cycle_calls=98), "no longer asked for"


@pytest.mark.parametrize(("kind", "profiled"), [(Kind.ENQUEUED, True), (Kind.BLOCKING, False)])
def test_every_cycle_is_timed_for_a_while_once_an_enqueuing_rank_is_slow(
    tmp_path: Path, kind: Kind, profiled: bool
) -> None:
    """Check it reading by reading: sampled while the rank is well, each cycle from the onset on, and sampled again."""
    script = Script(jitter=0.02)
    script.cycle(ddp(5), times=45)  # earlier than the computation is learned
    well = len(script.records)
    script.cycle(ddp(5), times=120, slowdown=2.0)
    records = script.records
    records["kind"] = kind
    (tmp_path / RINGS_DIR).mkdir(parents=True)
    name = "g1-r0-100.ring"
    path = write_ring(tmp_path / RINGS_DIR / name, records, rank=0, world_size=1)
    tracker = Tracker(tmp_path)
    every = []
    for end in range(5, len(records) + 1, 5):
        with path.open("r+b") as file:
            file.seek(HEAD_OFFSET)
            file.write(struct.pack("<Q", end))  # as if the shim had written no more yet
        tracker.poll([name])
        every.append(tracker.sample_every(probed=False))
    assert set(every[: well // 5]) == {SAMPLE_EVERY}
    assert (1 in every) is profiled
    assert every[-1] == SAMPLE_EVERY, "a profile ends by itself"
    assert tracker.sample_every(probed=True) == 1
