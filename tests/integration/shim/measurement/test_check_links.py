"""The links of a check through real launchers, which start the executors, and the agents' own files between them."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import falcon_bench
from falcon_agent.launch.measurements import Checks
from falcon_agent.launch.plan import links_for, plan_for
from falcon_agent.launch.run_dir import RunDir
from falcon_core.recovery.preflight.link_test import TRANSFER_MS, judge_links
from falcon_core.recovery.preflight.machine_test import Machine
from falcon_core.wire.launcher.launch import LaunchPlan
from falcon_core.wire.measurement.check import CheckReport
from falcon_core.wire.measurement.check_links import LinksOrder, LinksReport
from falcon_core.wire.reporting.messages import Plan, PlanMember
from tests.integration.shim.launching import Launcher

AGENT = Path(falcon_bench.__file__).parents[1]
COUNT = 3
NUMBER = 4
Start = Callable[..., Launcher]
SLEEPER = (sys.executable, "-c", "import time; time.sleep(99)")
PLAN = Plan(
    epoch=1,
    generation=1,
    phase="Stop",
    procs_per_replica=1,
    world_size=COUNT,
    master_addr="",
    master_port=0,
    check=NUMBER,
    check_ms=100,
    check_links=True,
    members=[
        PlanMember(replica=each, pod_uid=str(each), pod_name="", node="", first_rank=each) for each in range(COUNT)
    ],
)


class Pod:
    """A launcher, and its agent's part in a check."""

    def __init__(self, launcher: Launcher, replica: int) -> None:
        self.launcher, self.replica = launcher, replica
        self._run_dir = RunDir(launcher.run_dir)
        self._checks = Checks(self._run_dir)

    def take(self, plan: Plan) -> None:
        links = links_for(plan, str(self.replica))
        if links is not None:
            self._run_dir.ask_for_links(links)
        self.launcher.plan(plan_for(plan, str(self.replica)))

    def wait(self, wanted: Callable[[LinksReport], object]) -> CheckReport:
        """Wait until the agent reports such a state of the links."""
        deadline = time.monotonic() + 60
        while True:
            report = self._checks.of(self.launcher.status())
            if report is not None and report.links is not None and wanted(report.links):
                return report
            assert time.monotonic() < deadline, report
            time.sleep(0.02)


def has_port(links: LinksReport) -> bool:
    return links.port > 0


def is_over(links: LinksReport) -> bool:
    return links.over


def order(ports: list[int]) -> LinksOrder:
    ring = [(replica, "127.0.0.1", port) for replica, port in enumerate(ports)]
    return LinksOrder(number=NUMBER, token="f" * 32, milliseconds=TRANSFER_MS, ring=ring)


def pods(start: Start, *command: str) -> list[Pod]:
    return [Pod(start(*(command or SLEEPER), options=("--python", str(AGENT))), each) for each in range(COUNT)]


@pytest.mark.alone  # it judges what was measured
def test_three_pods_measure_the_links_between_them(start: Start) -> None:
    made = pods(start)
    for pod in made:
        pod.take(PLAN)
    ready = [pod.wait(has_port) for pod in made]
    assert all(report.micros and not report.why for report in ready), "the machines' own results are there already"
    links = order([report.links.port for report in ready if report.links is not None])
    for pod in made:
        pod.take(msgspec.structs.replace(PLAN, links=links))
    reports = [pod.wait(is_over) for pod in made]
    machines = [
        Machine(replica=each, pod_name="", node=str(each), report=report) for each, report in enumerate(reports)
    ]
    found, known = judge_links(machines, ())
    assert (found, known.slow, known.measured, known.why_missing) == ([], [], COUNT, [])
    assert [report.micros for report in reports] == [report.micros for report in ready]


def test_the_ranks_start_without_waiting_for_peers(start: Start) -> None:
    (pod, *_) = pods(start)
    pod.take(PLAN)
    pod.wait(has_port)
    pod.launcher.run()
    pod.launcher.wait(state="Running")
    deadline = time.monotonic() + 20
    while (status := pod.launcher.status()) is None or status.check is None or status.check.linking:
        assert time.monotonic() < deadline, status
        time.sleep(0.02)
    assert status.check.links_error == f"ended by signal {int(signal.SIGKILL)}"


def test_another_number_begins_anew(start: Start) -> None:
    launcher = pods(start)[0].launcher
    pod = Pod(launcher, 0)
    pod.take(PLAN)
    first = pod.wait(has_port)
    launcher.plan(LaunchPlan(generation=1, phase="Stop", check=NUMBER + 1, check_ms=100, check_links=1))
    second = pod.wait(lambda links: has_port(links) and launcher.status().check.number == NUMBER + 1)  # type: ignore[union-attr]
    assert (first.number, second.number) == (NUMBER, NUMBER + 1)


def test_where_links_are_not_wanted_nothing_waits(start: Start) -> None:
    launcher = pods(start)[0].launcher
    launcher.plan(LaunchPlan(generation=1, phase="Stop", check=NUMBER, check_ms=100))
    deadline = time.monotonic() + 60
    while (status := launcher.status()) is None or status.check is None or status.check.running:
        assert time.monotonic() < deadline, status
        time.sleep(0.02)
    assert (status.check.linking, status.check.links_error) == (False, "")
    assert not (launcher.run_dir / "launch" / "links").exists()


def test_without_python_the_pod_takes_no_part_and_says_why(start: Start) -> None:
    pod = Pod(start("/nonexistent/python3", "train.py", options=("--python", str(AGENT))), 0)
    pod.take(PLAN)
    report = pod.wait(is_over)
    assert report.backend == "falcon-launch", "the machine is measured all the same"
    assert report.links is not None
    assert (report.links.port, "no Python" in report.links.why) == (0, True)
