"""The executor of the links beside running ranks, by the real launcher: when it begins, when it ends, what is said."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

import falcon_bench
from falcon_core.wire.launcher.launch import PROBE_FILE, LaunchCheck, LaunchPlan
from falcon_core.wire.measurement.check_links import LinksPrinted
from tests.integration.shim.launching import Launcher

AGENT = Path(falcon_bench.__file__).parents[1]
Start = Callable[..., Launcher]
SLEEPER = (sys.executable, "-c", "import time; time.sleep(99)")
PLAN = LaunchPlan(
    generation=1, phase="Run", world_size=1, nnodes=1, procs=1, master_addr="127.0.0.1", master_port=29511
)


def until(launcher: Launcher, wanted: Callable[[LaunchCheck], object]) -> LaunchCheck:
    """Wait until the launcher says such a thing of the executor."""
    deadline = time.monotonic() + 60
    while True:
        status = launcher.status()
        if status is not None and status.links is not None and wanted(status.links):
            return status.links
        assert time.monotonic() < deadline, status
        time.sleep(0.02)


def port(launcher: Launcher, number: int) -> int:
    """Wait for the port of an executor."""
    deadline = time.monotonic() + 60
    while True:
        path = launcher.run_dir / PROBE_FILE
        printed = msgspec.json.decode(path.read_bytes(), type=LinksPrinted) if path.exists() else LinksPrinted()
        if printed.number == number:
            return printed.port
        assert time.monotonic() < deadline, launcher.status()
        time.sleep(0.02)


def ask(launcher: Launcher, number: int) -> None:
    launcher.plan(msgspec.structs.replace(PLAN, links=number))


def test_it_waits_beside_the_ranks_until_it_is_wanted_no_more(start: Start) -> None:
    launcher = start(*SLEEPER, options=("--python", str(AGENT)))
    launcher.plan(PLAN)
    launcher.wait(state="Running")
    assert launcher.wait(state="Running").links is None
    ask(launcher, 7)
    assert port(launcher, 7) > 0
    assert until(launcher, lambda links: links.running).number == 7
    ask(launcher, 8)
    assert port(launcher, 8) > 0
    assert until(launcher, lambda links: links.number == 8 and links.running).error == ""
    ask(launcher, 0)
    assert "signal 9" in until(launcher, lambda links: not links.running).error
    status = launcher.wait(state="Running")
    assert [rank.state for rank in status.ranks] == ["Running"], "the ranks go on"


def test_it_ends_with_the_ranks(start: Start) -> None:
    launcher = start(sys.executable, "-c", "import time; time.sleep(3)", options=("--python", str(AGENT)))
    ask(launcher, 7)
    assert port(launcher, 7) > 0
    status = launcher.wait(state="Exited")
    assert [rank.exit_code for rank in status.ranks] == [0]
    until(launcher, lambda links: not links.running)


def test_a_stop_ends_it_as_well(start: Start) -> None:
    launcher = start(*SLEEPER, options=("--python", str(AGENT)))
    ask(launcher, 7)
    assert port(launcher, 7) > 0
    launcher.plan(LaunchPlan(generation=2, phase="Stop"))
    assert launcher.wait(state="Stopped").dead_below == 2
    until(launcher, lambda links: not links.running)


def test_without_python_it_is_said_and_the_ranks_run(start: Start) -> None:
    launcher = start(*SLEEPER)
    ask(launcher, 7)
    assert "no Python" in until(launcher, lambda links: links.error).error
    assert launcher.wait(state="Running").links is not None
