"""The agent's buffers: made once, usable by another user, never harmed, and read whatever lies in their place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from falcon_agent.checkpoint.store import Store
from falcon_core.wire.saves.checkpoint import Held
from tests.unit.client_format import client

MIB = 1 << 20
NAMES = [f"rank-{rank}.{end}" for rank in range(2) for end in ("0", "1", "lock")]


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def commit(step: int, rank: int = 0) -> bytes:
    places = {"index_offset": 8192, "index_bytes": 1, "data_offset": 12288, "end": 12288, "index_crc": 0}
    made: bytes = client.pack_commit(
        client.Commit(generation=1, rank=rank, world_size=8, step=step, sequence=1, unix_ns=2_000_000, **places)
    )
    return made


def written(path: Path, content: bytes) -> None:
    with path.open("r+b") as file:
        file.write(content)


def test_the_memory_is_divided_and_taken(tmp_path: Path, umask: None) -> None:
    Store(tmp_path, ranks=2, memory_bytes=33 * MIB).make()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(NAMES)
    for name in NAMES:
        about = (tmp_path / name).stat()
        size = 0 if name.endswith("lock") else 33 * MIB // 4 // 4096 * 4096
        assert about.st_size == size
        assert about.st_blocks * 512 >= size, "its pages are there"
        assert about.st_mode & 0o777 == 0o666, "whatever the umask says"


def test_the_next_agent_finds_what_is_there(tmp_path: Path) -> None:
    Store(tmp_path, ranks=2, memory_bytes=32 * MIB).make()
    written(tmp_path / "rank-1.0", commit(40, rank=5))
    (tmp_path / "rank-0.1.new").write_bytes(b"of an agent that was killed")
    later = Store(tmp_path, ranks=2, memory_bytes=32 * MIB)
    later.make()
    assert later.held() == [Held(5, 40, 2, 1)]


def test_what_another_rank_saved_here_is_forgotten_and_the_own_stays(tmp_path: Path) -> None:
    store = Store(tmp_path, ranks=2, memory_bytes=32 * MIB)
    store.make()
    for name, rank in (("rank-0.0", 4), ("rank-0.1", 2), ("rank-1.0", 5)):
        written(tmp_path / name, commit(40, rank=rank))
    assert (store.holds(0, 2), store.holds(0, 4), store.holds(1, 3)) == (True, True, False)
    store.forget_others(4)
    assert store.held() == [Held(4, 40, 2, 1), Held(5, 40, 2, 1)]
    store.forget_others(2)
    assert store.held() == []


def test_both_steps_of_a_rank_are_read_and_empty_buffers_say_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path, ranks=1, memory_bytes=16 * MIB)
    assert store.held() == []
    store.make()
    assert store.held() == []
    written(tmp_path / "rank-0.0", commit(20))
    written(tmp_path / "rank-0.1", commit(40))
    assert [held.step for held in store.held()] == [20, 40]


def a_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def nothing(path: Path) -> None:
    pass


@pytest.mark.parametrize("put", [a_link, a_pipe, Path.mkdir, Path.touch, nothing])
def test_what_training_puts_in_a_buffers_place_is_no_checkpoint(tmp_path: Path, put: Callable[[Path], None]) -> None:
    store = Store(tmp_path, ranks=1, memory_bytes=16 * MIB)
    store.make()
    (tmp_path / "rank-0.0").unlink()
    put(tmp_path / "rank-0.0")
    written(tmp_path / "rank-0.1", commit(40))
    assert [held.step for held in store.held()] == [40]


def test_a_volume_that_is_too_small_is_told_and_harms_nobody(tmp_path: Path) -> None:
    with capture_logs() as logs:
        Store(tmp_path / "absent", ranks=1, memory_bytes=16 * MIB).make()
    (entry,) = logs
    assert entry["log_level"] == "error"
    assert "absent" in entry["error"]
