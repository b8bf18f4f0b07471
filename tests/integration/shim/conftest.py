"""Launchers that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.shim.launching import SHIM, Launcher

Start = Callable[..., Launcher]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start ``falcon-launch run`` on a command, in a run directory of its own."""
    if not (SHIM / "falcon-launch").is_file():
        pytest.fail("falcon-launch is not built: run the tests through make test-integration")
    started: list[Launcher] = []

    def begin(*command: str, options: tuple[str, ...] = (), environment: dict[str, str] | None = None) -> Launcher:
        run_dir = tmp_path / f"run{len(started)}"
        started.append(Launcher(run_dir, *command, options=options, environment=environment))
        return started[-1]

    yield begin
    for launcher in started:
        launcher.process.kill()
        launcher.process.communicate(timeout=60)
