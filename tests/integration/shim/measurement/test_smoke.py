"""The smoke test during a restart, by the real launcher: when it begins, what it says, that no rank waits."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import msgspec
import pytest

from falcon_core.recovery.preflight.machine_test import Machine
from falcon_core.recovery.preflight.smoke_test import Smoke, begin_round, step
from falcon_core.wire.launcher.launch import LaunchPlan, Phase
from tests.integration.shim.launching import Launcher

alone = pytest.mark.alone  # it counts what a thread of lowest priority does in a tenth of a second
Start = Callable[..., Launcher]
SLEEPER = (sys.executable, "-c", "import time; time.sleep(99)")
# It takes half a second to bring something to an end.
CLOSER = (
    sys.executable,
    "-c",
    "import signal, sys, time\n"
    "def close(*_):\n"
    "    time.sleep(0.5)\n"
    "    sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, close)\n"
    "print('ready', flush=True)\n"
    "time.sleep(99)",
)


def plan(launcher: Launcher, smoke: int, *, generation: int = 2, phase: Phase = "Stop") -> None:
    run = {"world_size": 1, "nnodes": 1, "procs": 1, "master_addr": "127.0.0.1", "master_port": 29511}
    launcher.plan(LaunchPlan(generation=generation, phase=phase, smoke=smoke, **(run if phase == "Run" else {})))


@alone
def test_it_begins_when_the_processes_are_dead_and_is_made_once_for_each_number(start: Start) -> None:
    launcher = start(*CLOSER)
    launcher.run()
    launcher.wait(state="Running")
    while b"ready" not in launcher.tail(0):
        time.sleep(0.02)
    plan(launcher, 1)
    seen = []
    while not (seen and seen[-1].dead_below == 2):
        status = launcher.status()
        assert status is not None
        seen.append(status)
    assert any(status.state == "Stopping" for status in seen)
    assert all(status.smoke is None for status in seen if status.state == "Stopping")
    assert launcher.measured(1, "smoke").error == ""
    first = launcher.printed(1, "smoke")
    assert (first.why, first.backend, first.problems) == ("", "falcon-launch", [])
    assert set(first.micros) == {"fp32"}
    assert first.micros["fp32"] > 0
    written = (launcher.run_dir / "launch" / "smoke").stat().st_mtime_ns
    plan(launcher, 1, phase="Run")
    launcher.wait(state="Running")
    plan(launcher, 0, phase="Run")
    assert (launcher.run_dir / "launch" / "smoke").stat().st_mtime_ns == written
    plan(launcher, 2, phase="Run")
    assert launcher.measured(2, "smoke").error == ""
    assert (launcher.run_dir / "launch" / "smoke").stat().st_mtime_ns > written
    assert launcher.wait(state="Running").generation == 2, "the rank goes on"


@alone
def test_the_ranks_start_beside_it_and_let_it_end(start: Start) -> None:
    launcher = start(*SLEEPER)
    plan(launcher, 0)
    launcher.wait(dead_below=2)
    plan(launcher, 1, phase="Run")
    deadline = time.monotonic() + 60
    together = False
    while not together:
        status = launcher.status()
        together = status is not None and status.state == "Running" and status.smoke is not None
        assert time.monotonic() < deadline
    assert launcher.measured(1, "smoke").error == ""
    assert launcher.printed(1, "smoke").micros["fp32"] > 0
    assert launcher.wait(state="Running").ranks[0].state == "Running"


def test_where_it_cannot_be_made_the_ranks_start_all_the_same(start: Start) -> None:
    launcher = start(*SLEEPER)
    launcher.wait(state="Idle")
    (launcher.run_dir / "launch" / "smoke").mkdir()
    plan(launcher, 1, phase="Run")
    launcher.wait(state="Running")
    assert "launch/smoke" in launcher.measured(1, "smoke").error


def test_a_next_stop_ends_it(start: Start) -> None:
    launcher = start(*SLEEPER)
    plan(launcher, 1)
    launcher.wait(dead_below=2)
    plan(launcher, 0, generation=3)
    launcher.wait(dead_below=3)
    assert launcher.measured(1, "smoke").number == 1
    plan(launcher, 2, generation=3)
    assert launcher.measured(2, "smoke").error == ""


@alone
def test_a_machine_of_a_tenth_of_the_speed_is_sick_beside_what_two_launchers_measure(start: Start) -> None:
    """The rule and the launcher's own words fit together; the third machine's figures are those of the first, ÷ 10."""
    rounds = []
    for number in (1, 2):
        found = []
        for _ in range(2):
            launcher = start(*SLEEPER)
            plan(launcher, number)
            launcher.measured(number, "smoke")
            found.append(launcher.printed(number, "smoke"))
        slow = msgspec.structs.replace(found[0], micros={"fp32": min(each.micros["fp32"] for each in found) // 10})
        rounds.append(
            [
                Machine(replica=at, pod_name=f"p{at}", node=f"n{at}", report=report)
                for at, report in enumerate([*found, slow])
            ]
        )
    state = begin_round(Smoke(), 2, 0.0)
    for each in rounds:
        state = step(state, each, waits_since=0.0, now=0.0)
    assert "n2" in [found.node for found in state.found if found.is_certain]
