"""A peer that refuses connections for a moment, while real PyTorch sets a communicator of real Gloo up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from falcon_core.wire import ring
from falcon_core.wire.ring import Kind
from tests.integration.ports import free_port
from tests.integration.refusing import Network
from tests.integration.shim.conftest import Start
from tests.integration.shim.launching import Launcher

PYTHON = Path(os.environ.get("FALCON_CACHE", "")) / "torch" / "venv" / "bin" / "python"
PROGRAM = Path(__file__).parent / "programs" / "joining.py"
TORCH_SECONDS = 150  # several imports of PyTorch on a shared core
AWAY_SECONDS = 0.5  # Gloo's own tries are over within milliseconds, the shim's first pause lasts 0.75 s at least

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="skipped: a network of its own takes root"),
]


def begin(start: Start, network: Network, port: int, retries: int, *arguments: str) -> Launcher:
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: run the tests through make test-integration")
    launcher = start(*network.command(str(PYTHON), str(PROGRAM), *arguments))
    launcher.run(procs=2, port=port, retries=retries)
    launcher.wait(state="Running")
    return launcher


def until(launcher: Launcher, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TORCH_SECONDS
    while not holds():
        assert time.monotonic() < deadline, [launcher.tail(rank) for rank in range(2)]
        time.sleep(0.02)


def away_for_a_moment(network: Network, launcher: Launcher) -> None:
    """Let the connections pass, a moment after the first of them was refused."""
    until(launcher, lambda: any(b"failed to connect" in launcher.tail(rank) for rank in range(2)))
    time.sleep(AWAY_SECONDS)
    network.admit()


def exit_codes(launcher: Launcher) -> list[int | None]:
    status = launcher.status()
    return [rank.exit_code for rank in status.ranks] if status is not None else []


def retries(launcher: Launcher) -> ring.RecordArray:
    """Return the records of the retries, of all ranks."""
    found = []
    for path in (launcher.run_dir / "launch" / "rings").glob("*.ring"):
        raw = path.read_bytes()
        records = np.frombuffer(raw[ring.HEADER_BYTES :], dtype=ring.RECORD_DTYPE)[: ring.parse_header(raw).head]
        found.append(records[records["kind"] == Kind.RETRY])
    return np.concatenate(found) if found else np.empty(0, dtype=ring.RECORD_DTYPE)


def test_the_first_group_is_joined_once_the_peer_can_be_reached(start: Start, network: Network) -> None:
    port = free_port()
    network.refuse(but=port)
    launcher = begin(start, network, port, 3)
    away_for_a_moment(network, launcher)
    ended = launcher.wait(state="Exited", timeout_seconds=TORCH_SECONDS)
    assert [rank.exit_code for rank in ended.ranks] == [0, 0], launcher.finish()
    told = retries(launcher)
    assert told["group"].tolist()[0] == 1
    assert set(told["peer_or_root"].tolist()) <= {0, 1}
    assert (told["duration_ns"] >= 750_000_000).all()


def test_a_later_group_as_well(start: Start, network: Network, tmp_path: Path) -> None:
    port = free_port()
    launcher = begin(start, network, port, 3, str(tmp_path))
    until(launcher, lambda: all((tmp_path / f"joined-{rank}").exists() for rank in range(2)))
    assert not len(retries(launcher))
    network.refuse(but=port)
    (tmp_path / "go").touch()
    away_for_a_moment(network, launcher)
    ended = launcher.wait(state="Exited", timeout_seconds=TORCH_SECONDS)
    assert [rank.exit_code for rank in ended.ranks] == [0, 0], launcher.finish()
    assert len(retries(launcher))


def test_without_retries_the_same_moment_ends_a_rank(start: Start, network: Network) -> None:
    port = free_port()
    network.refuse(but=port)
    launcher = begin(start, network, port, 0)
    away_for_a_moment(network, launcher)
    until(launcher, lambda: 1 in exit_codes(launcher))  # its peer waits for it in vain
    assert any(b"Connection refused" in launcher.tail(rank) for rank in range(2))
    assert not len(retries(launcher))
