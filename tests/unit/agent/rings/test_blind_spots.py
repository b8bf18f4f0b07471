"""What a shim says of itself in its ring's header reaches the agent's report."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from falcon_agent.rings.blind_spots import sight
from falcon_agent.rings.ring_reader import RingReader
from falcon_agent.rings.tracker import Tracker
from falcon_core.wire import ring
from falcon_core.wire.launcher.launch import RINGS_DIR
from falcon_core.wire.ring import DeviceTimes, Full, NoDeviceTimes
from tests.unit.agent.ring_files import descriptor, write_ring

DEVICE_OFFSET = 224


def a_ring(folder: Path, *device: int) -> Path:
    path = write_ring(folder / "g1-r0-100.ring", descriptor(1, 8, 0), rank=0, world_size=8)
    raw = bytearray(path.read_bytes())
    struct.pack_into(f"<{len(device)}I", raw, DEVICE_OFFSET, *device)
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize(
    ("device", "seen"),
    [
        ((), "Full"),
        ((DeviceTimes.ON, NoDeviceTimes.NONE, 700, 1, 0), "Full"),
        ((DeviceTimes.OFF, NoDeviceTimes.NO_DRIVER), "NoDriver"),
        ((DeviceTimes.OFF, NoDeviceTimes.OLD_DRIVER), "OldDriver"),
        ((DeviceTimes.OFF, NoDeviceTimes.NO_THREAD), "NoThread"),
        ((DeviceTimes.OFF, NoDeviceTimes.FAULTS, 700, 100, 0), "DriverFails"),
        ((DeviceTimes.OFF, NoDeviceTimes.EXIT), "Full"),
        ((0, 0, 0, 0, Full.COMMUNICATORS | Full.COUNTERS), "CommunicatorsFull"),
        ((DeviceTimes.OFF, NoDeviceTimes.FAULTS, 0, 0, Full.COUNTERS), "CountersFull"),
        ((77, 77, 1 << 31, 77, 1 << 20), "Full"),
    ],
)
def test_a_report_says_what_the_shim_says_of_itself(device: tuple[int, ...], seen: str, tmp_path: Path) -> None:
    folder = tmp_path / RINGS_DIR
    folder.mkdir(parents=True)
    path = a_ring(folder, *device)
    tracker = Tracker(tmp_path)
    tracker.poll([path.name])
    (rank,) = tracker.signals(1)
    assert rank.sight == seen


def test_the_headers_figures_are_read(tmp_path: Path) -> None:
    reader = RingReader(a_ring(tmp_path, DeviceTimes.OFF, NoDeviceTimes.FAULTS, 700, 100, Full.COUNTERS))
    status = reader.status()
    assert status is not None
    assert (status.device_times, status.device_reason) == (DeviceTimes.OFF, NoDeviceTimes.FAULTS)
    assert (status.device_code, status.device_faults, status.full) == (700, 100, ring.Full.COUNTERS)
    reader.path.write_bytes(b"FALCRING")
    assert sight(reader.status()) == "Full", "a damaged ring is reported elsewhere"
