"""The links between machines before a start: three machines, whose links are alike or not, measured many times.

    make venv && python -m benchmarks.ready.links [RUNS]     # as root: it makes network namespaces

A machine is a network namespace; a switch joins them. In each round three executors measure their links, as a job's
pods do, and the operator's own rule compares them: of links that are alike nobody must be named, a machine with a slow
adapter must, and of one slow link both ends. One round each; the operator asks for two in a row.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.limits import Limit
from falcon_core.recovery.preflight.link_test import judge_links
from falcon_core.recovery.preflight.machine_test import Machine
from tests.integration.agent.linking import Executor, measured, wait_for_ports
from tests.integration.agent.networks import Network, inside, machines

MACHINES: Final = 3
SLOW: Final = "20mbit"
MOST_SECONDS: Final = 3.0  # of the measurement: three turns, each of half a second, on a machine with other work
Named = tuple[list[int], list[list[str]]]  # machines, and the ends of links
WAYS: Final[dict[str, tuple[Callable[[Network], None], Named]]] = {
    "all alike": (lambda network: None, ([], [])),
    "one adapter at 20 Mbit/s": (lambda network: network.limit(1, SLOW), ([1], [])),
    "one link at 20 Mbit/s": (lambda network: network.limit_between(0, 1, SLOW), ([], [["n-0", "n-1"]])),
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What the rounds of one way have shown."""

    way: str
    wrong: int  # rounds that named something else than they should have
    seconds: list[float]  # from the order to the last result

    def line(self) -> str:
        right = f"{len(self.seconds) - self.wrong} of {len(self.seconds)}"
        return f"| {self.way} | {right} | {statistics.median(self.seconds):.2f} s | {max(self.seconds):.2f} s |"


def measure(runs: int) -> list[Row]:
    """Measure all ways."""
    return [_measure(way, runs) for way in WAYS]


def table(rows: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    head = "| links of three machines | named rightly | order to last result, median | longest |"
    return "\n".join([head, "|---|---|---|---|", *(row.line() for row in rows), ""])


def limits(rows: list[Row]) -> list[Limit]:
    """Compare the rounds with what is promised."""
    return [
        limit
        for row in rows
        for limit in (
            Limit(what=f"links, {row.way}: rounds of {len(row.seconds)} that name wrongly", measured=row.wrong, most=0),
            Limit(
                what=f"links, {row.way}: measured within, median",
                measured=statistics.median(row.seconds),
                most=MOST_SECONDS,
                unit="s",
            ),
        )
    ]


def _measure(way: str, runs: int) -> Row:
    spoil, expected = WAYS[way]
    seconds, wrong = [], 0
    with machines(MACHINES) as network, tempfile.TemporaryDirectory() as folder:
        spoil(network)
        for _ in range(runs):
            found, taken = _round(network, Path(folder))
            seconds.append(taken)
            bad, links = judge_links(found, ())
            wrong += ([each.replica for each in bad], [each.nodes for each in links.slow]) != expected
    return Row(way=way, wrong=wrong, seconds=seconds)


def _round(network: Network, folder: Path) -> tuple[list[Machine], float]:
    executors = [
        Executor(folder, place, network.addresses[place], inside(network.names[place])) for place in range(MACHINES)
    ]
    try:
        wait_for_ports(executors)
        began = time.monotonic()
        return measured(executors), time.monotonic() - began
    finally:
        for each in executors:
            each.stop()


if __name__ == "__main__":
    print(table(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 3)))
