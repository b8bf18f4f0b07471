"""Executors of the links, one a machine, with the test in the place of their agents and of the operator."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

import falcon_bench
from falcon_agent.launch.plan import links_for
from falcon_core.recovery.preflight.link_test import TRANSFER_MS
from falcon_core.recovery.preflight.machine_test import Machine
from falcon_core.wire.measurement.check import CheckReport
from falcon_core.wire.measurement.check_links import LinksOrder, LinksPrinted, LinksReport, read_links
from falcon_core.wire.reporting.messages import Plan, PlanMember

AGENT = Path(falcon_bench.__file__).parents[1]
TOKEN = "0123456789abcdef" * 2
NUMBER = 7


class Executor:
    """One executor. ``before``: words before its command, that put it into a machine."""

    def __init__(self, folder: Path, replica: int, address: str, before: Sequence[str] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.replica, self.address = replica, address
        self._order, self._result = folder / f"order-{replica}", folder / f"result-{replica}"
        for left in (self._order, self._result):
            left.unlink(missing_ok=True)
        command = [sys.executable, "-m", "falcon_bench.links", str(NUMBER), str(self._order), str(self._result)]
        self.process = subprocess.Popen([*before, *command], env={**os.environ, "PYTHONPATH": str(AGENT)})

    def printed(self) -> LinksPrinted | None:
        try:
            return msgspec.json.decode(self._result.read_bytes(), type=LinksPrinted)
        except OSError:
            return None

    def report(self) -> LinksReport:
        return read_links(NUMBER, self.printed(), running=self.process.poll() is None, error="")

    def ask(self, plan: Plan) -> None:
        """Give it its order, as an agent derives it from the job's plan."""
        order = links_for(plan, str(self.replica))
        fresh = self._order.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(order))
        fresh.rename(self._order)

    def machine(self) -> Machine:
        report = CheckReport(NUMBER, backend="torch", devices="1 × CPU", micros={"fp32": 1}, links=self.report())
        return Machine(replica=self.replica, pod_name=f"p-{self.replica}", node=f"n-{self.replica}", report=report)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def plan(executors: Sequence[Executor], token: str = TOKEN) -> Plan:
    """Return the plan with the order for all of them."""
    ring = [(each.replica, each.address, each.report().port) for each in executors]
    return Plan(
        epoch=1,
        generation=1,
        phase="Stop",
        procs_per_replica=1,
        world_size=len(ring),
        master_addr="",
        master_port=0,
        check=NUMBER,
        check_links=True,
        links=LinksOrder(number=NUMBER, token=token, milliseconds=TRANSFER_MS, ring=ring),
        members=[
            PlanMember(replica=each.replica, pod_uid=str(each.replica), pod_name="", node="", first_rank=each.replica)
            for each in executors
        ],
    )


def wait_for_ports(executors: Sequence[Executor]) -> None:
    deadline = time.monotonic() + 60
    while not all(each.report().port > 0 for each in executors):
        assert time.monotonic() < deadline, [each.report() for each in executors]
        time.sleep(0.02)


def measured(executors: Sequence[Executor]) -> list[Machine]:
    """Let them measure their links; return the machines as the operator judges them."""
    wait_for_ports(executors)
    order = plan(executors)
    for each in executors:
        each.ask(order)
    for each in executors:
        each.process.wait(timeout=120)
    return [each.machine() for each in executors]
