"""The control file as the gates of ranks: what stands there at each instant, and what an earlier agent left."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from falcon_agent.launch.run_dir import RunDir
from falcon_agent.pause.gates import Gates
from falcon_core.wire.launcher import control
from falcon_core.wire.launcher.control import ARMED, CONTROL_BYTES, MAX_ENTRIES, Mode, Target, pack_control
from falcon_core.wire.launcher.launch import CONTROL_FILE

SECOND = 1_000_000_000
TARGETS = [Target(pid=7, key=1 << 40, calls=12), Target(pid=8, key=1 << 40, calls=12)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    RunDir(tmp_path).write_control()
    RunDir(tmp_path).sample(20, 65, 100)
    return tmp_path / CONTROL_FILE


def expected(**fields: object) -> bytes:
    return pack_control(Mode.TRACK, 1, sample_every=20, cycle_calls=65, verify_every=100, **fields)  # type: ignore[arg-type]


def test_ranks_are_aimed_at_a_cut_and_let_go(path: Path) -> None:
    gates = Gates(path)
    gates.aim(TARGETS, 9 * SECOND, 2 * SECOND)
    armed = expected(
        armed=True, heartbeat_ns=2 * SECOND, deadline_ns=9 * SECOND, gate=1, table_epoch=2, targets=tuple(TARGETS)
    )
    assert path.read_bytes() == armed
    assert (gates.number, gates.table) == (1, 2)
    gates.beat(3 * SECOND)
    assert struct.unpack_from("<Q", path.read_bytes(), control.HEARTBEAT_OFFSET) == (3 * SECOND,)
    gates.aim(TARGETS[:1], 9 * SECOND, 3 * SECOND)
    assert (gates.number, gates.table) == (1, 4), "other targets are of the same pause"
    gates.open()
    assert struct.unpack_from("<I", path.read_bytes(), control.MODE_OFFSET) == (Mode.TRACK,)
    gates.aim(TARGETS, 9 * SECOND, 4 * SECOND)
    assert (gates.number, gates.table) == (2, 6), "who gave a pause up waits for none of its number"
    gates.close()


def test_what_an_earlier_agent_left_closed_is_opened(path: Path) -> None:
    first = Gates(path)
    first.aim(TARGETS, 9 * SECOND, SECOND)
    second = Gates(path)
    assert struct.unpack_from("<I", path.read_bytes(), control.MODE_OFFSET)[0] & ARMED == 0
    second.aim(TARGETS, 9 * SECOND, SECOND)
    assert (second.number, second.table) == (2, 4)


def test_a_table_that_its_writer_did_not_finish_is_written_anew(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(control.TABLE_EPOCH_OFFSET)
        file.write(struct.pack("<Q", 5))
    gates = Gates(path)
    gates.aim(TARGETS, 9 * SECOND, SECOND)
    assert gates.table == 8


def test_more_targets_than_the_table_holds_close_nothing(path: Path) -> None:
    gates = Gates(path)
    with pytest.raises(ValueError, match="holds"):
        gates.aim(TARGETS * MAX_ENTRIES, 9 * SECOND, SECOND)
    assert len(path.read_bytes()) == CONTROL_BYTES
    assert struct.unpack_from("<I", path.read_bytes(), control.MODE_OFFSET) == (Mode.TRACK,)
