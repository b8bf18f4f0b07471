"""What the agent passes on of a measurement of its machine."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from falcon_agent.checks import Checks
from falcon_agent.run_dir import RunDir
from falcon_core.wire.check import CheckReport
from falcon_core.wire.launch import CHECK_FILE, LaunchCheck, LaunchStatus

State = Literal["Idle", "Running", "Stopping", "Stopped", "Exited"]


def status(check: LaunchCheck | None, state: State = "Stopped") -> LaunchStatus:
    return LaunchStatus(generation=1, dead_below=1, state=state, check=check)


def printed(folder: Path, rate: float) -> None:
    path = folder / CHECK_FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{{"scores": {{"fp32": {rate}}}}}')


def test_it_is_read_once_when_it_is_over(tmp_path: Path) -> None:
    checks = Checks(RunDir(tmp_path))
    printed(tmp_path, 0.5)
    over = status(LaunchCheck(number=3, running=False))
    assert checks.of(None) is None
    assert checks.of(status(None)) is None
    assert checks.of(status(LaunchCheck(number=3, running=True))) is None
    assert checks.of(over) == CheckReport(3, micros={"fp32": 500_000})
    printed(tmp_path, 0.9)
    assert checks.of(over) == CheckReport(3, micros={"fp32": 500_000})
    assert checks.of(status(LaunchCheck(number=4, running=False))) == CheckReport(4, micros={"fp32": 900_000})


def test_nobody_waits_for_it_when_the_ranks_run(tmp_path: Path) -> None:
    printed(tmp_path, 0.5)
    assert Checks(RunDir(tmp_path)).of(status(LaunchCheck(number=3, running=False), "Running")) is None


@pytest.mark.parametrize(("error", "why"), [("python3: not found", "python3: not found"), ("", "printed no result")])
def test_why_there_is_no_result(tmp_path: Path, error: str, why: str) -> None:
    found = Checks(RunDir(tmp_path)).of(status(LaunchCheck(number=1, running=False, error=error)))
    assert found is not None
    assert why in found.why


def test_a_link_to_elsewhere_is_no_result(tmp_path: Path) -> None:
    printed(tmp_path, 0.5)
    (tmp_path / "elsewhere").write_text('{"scores": {"fp32": 1.0}}')
    (tmp_path / CHECK_FILE).unlink()
    (tmp_path / CHECK_FILE).symlink_to(tmp_path / "elsewhere")
    found = Checks(RunDir(tmp_path)).of(status(LaunchCheck(number=1, running=False)))
    assert found is not None
    assert found.micros == {}
