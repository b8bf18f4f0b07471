"""The check of machines before a start: three at a time, of which one has half its CPU, in two ways.

    make venv torch-venv && python -m benchmarks.ready.executor [RUNS]     # as root: it makes cgroups

A machine is a cgroup with half a core. All three run the benchmark executor at the same time, as a job's pods do, and
the operator's own rule compares them: a machine of three alike must not be named, one with half the CPU must. One round
each; the operator asks for two in a row.

For comparison the machine that all of this runs on is measured by itself: products of one thread without any limit, for
as much CPU time as a machine with a quarter of a core has in a second. What scatters there is not the executor's.
"""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.limits import Limit
from falcon_core.recovery.preflight.machine_test import LOAD_MS, Machine, judge
from falcon_core.wire.measurement.check import CheckReport, read_printed
from tests.integration.agent.cpus import cgroup, machines_with
from tests.integration.agent.pod import PYTHON

AGENT: Final = Path(__file__).parents[2] / "agent"
CORES: Final = 0.5
MACHINES: Final = 3
SICK: Final = MACHINES - 1  # the last
KIND: Final = "fp32"
WAYS: Final = ("alike", "half the quota", "a neighbour of the same weight")
MOST_SPREAD: Final = 0.10
OWN_SAMPLES: Final = 24
OWN_CODE: Final = """
import time, torch
torch.set_num_threads(1)
size = 768  # as the executor's
left, right = torch.randn(size, size), torch.randn(size, size)
for _ in range(%d + 1):
    began, done = time.process_time(), 0
    while time.process_time() - began < 0.25:
        torch.matmul(left, right)
        done += 1
    print(done / (time.process_time() - began), flush=True)
    time.sleep(0.5)
"""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What the rounds of one way have shown."""

    way: str
    ratios: list[float]  # the peers' mean rate ÷ the last machine's
    wrong: int  # rounds that named another machine than they should have
    seconds: list[float]  # from the start of the interpreters to the last result
    memory_mib: float  # the largest of a process

    @property
    def spread(self) -> float:
        """Return the interquartile range of the ratios ÷ their median."""
        return _spread(self.ratios)

    def line(self) -> str:
        median, seconds = statistics.median(self.ratios), statistics.median(self.seconds)
        right = f"{len(self.ratios) - self.wrong} of {len(self.ratios)}"
        return (
            f"| {self.way} | {right} | {median:.2f} | {self.spread:.1%} | {seconds:.1f} s | {self.memory_mib:.0f} MiB |"
        )


def own_spread() -> float:
    """Return the interquartile range of the rates ÷ their median, of one thread without a limit."""
    printed = subprocess.run([str(PYTHON), "-c", OWN_CODE % OWN_SAMPLES], capture_output=True, check=True, text=True)
    return _spread(list(map(float, printed.stdout.split()))[1:])  # without the first: it starts the libraries


def own_line(spread: float) -> str:
    """Return the comparison as a line of text."""
    return (
        f"For comparison, one thread without any limit and with nothing beside it: its products in 0.25 s of CPU time"
        f" ({OWN_SAMPLES} samples) have an interquartile range of {spread:.1%} of their median.\n"
    )


def _spread(values: list[float]) -> float:
    low, median, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return (high - low) / median


def measure(runs: int) -> list[Row]:
    """Measure all ways."""
    return [_measure(way, runs) for way in WAYS]


def table(rows: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    head = "| the last of three machines | named rightly | ratio, median | interquartile range | a round | memory |"
    return "\n".join([head, "|---|---|---|---|---|---|", *(row.line() for row in rows), ""])


def limits(rows: list[Row]) -> list[Limit]:
    """Compare the rounds with what is promised."""
    return [
        limit
        for row in rows
        for limit in (
            Limit(what=f"{row.way}: rounds of {len(row.ratios)} that name wrongly", measured=row.wrong, most=0),
            Limit(what=f"{row.way}: interquartile range of the ratio", measured=row.spread, most=MOST_SPREAD),
        )
    ]


def _measure(way: str, runs: int) -> Row:
    ratios, seconds, wrong = [], [], 0
    expected = [] if way == WAYS[0] else [SICK]
    with _machines(way) as folders:
        for _ in range(runs):
            began = time.monotonic()
            reports = _round(folders)
            seconds.append(time.monotonic() - began)
            rates = [report.micros[KIND] for report in reports]
            ratios.append(statistics.mean(rates[:SICK]) / rates[SICK])
            named = judge(
                [
                    Machine(replica=place, pod_name="", node=str(place), report=report)
                    for place, report in enumerate(reports)
                ]
            )
            wrong += [each.replica for each in named] != expected
    memory_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return Row(way=way, ratios=ratios, wrong=wrong, seconds=seconds, memory_mib=memory_mib)


def _round(folders: list[Path]) -> list[CheckReport]:
    options = ("-m", "falcon_bench", "--size", "full", "--seconds", str(LOAD_MS / 1000), "--json")
    environ = {**os.environ, "PYTHONPATH": str(AGENT)}
    started = [
        subprocess.Popen(
            ["sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$0" "$@"', str(PYTHON), *options],
            env=environ,
            stdout=subprocess.PIPE,
        )
        for folder in folders
    ]
    reports = [read_printed(1, process.communicate()[0]) for process in started]
    for report in reports:
        assert not report.why, report.why
    return reports


@contextlib.contextmanager
def _machines(way: str) -> Iterator[list[Path]]:
    """Yield a cgroup for each machine's processes."""
    cores = [CORES / 2 if place == SICK and way == "half the quota" else CORES for place in range(MACHINES)]
    with contextlib.ExitStack() as made:
        machines = made.enter_context(machines_with(cores))
        pods = [made.enter_context(cgroup(machine / "pod")) for machine in machines]
        if way == "a neighbour of the same weight":
            beside = made.enter_context(cgroup(machines[SICK] / "neighbour"))
            command = f"echo $$ > {beside}/cgroup.procs; while :; do :; done"
            neighbour = subprocess.Popen(["sh", "-c", command])
            made.callback(neighbour.wait)
            made.callback(neighbour.kill)
        yield pods


if __name__ == "__main__":
    rows = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
    print(table(rows) + "\n" + own_line(own_spread()))
