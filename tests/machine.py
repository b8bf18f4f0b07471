"""What the machine does to tests of real processes: CPU time that a hypervisor takes away.

No test here is about a machine that stands still for seconds at a time: connections time out on it, and no verdict
about a slow rank is possible. So a test that failed while that happened is repeated, in the open.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from dev.kubectl import Json

# Beyond this share of stolen time a rank really waits for a CPU, now and then twice as long as its peers.
DISTURBING = 0.05
QUIET_SECONDS = 10.0
MEASUREMENTS = 3  # at most, until one was not disturbed
BUDGET_SECONDS = 600.0  # of a run, after which nothing is repeated and nothing waits for a quiet machine
_STARTED = time.monotonic()
SLOWED_BY_THE_MACHINE = ("CpuContention", "Unknown")
T = TypeVar("T")


class CpuTimes(msgspec.Struct, frozen=True):
    """Clock ticks of all CPUs since the boot."""

    stolen: int
    total: int


def cpu_times() -> CpuTimes:
    """Return the present times: the first line of /proc/stat without the guests', which user time contains."""
    ticks = [int(field) for field in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    return CpuTimes(stolen=ticks[7], total=sum(ticks))


def stolen_share(since: CpuTimes) -> float:
    """Return the share of CPU time that the hypervisor took since then, 0 to 1."""
    now = cpu_times()
    return (now.stolen - since.stolen) / max(1, now.total - since.total)


def seconds_for_the_machine() -> float:
    """Return what is left of the time in which a run goes easy on a disturbed machine."""
    return _STARTED + BUDGET_SECONDS - time.monotonic()


class Rest:
    """The time since the newest test was over: what was seen then need not be waited for again."""

    def __init__(self) -> None:
        self._since = math.inf
        self._times = CpuTimes(0, 0)

    def begin(self) -> None:
        """Note that a test is over."""
        self._since, self._times = time.monotonic(), cpu_times()

    def was_quiet(self) -> bool:
        """Check whether the rest was long enough, and the hypervisor left the CPUs alone meanwhile."""
        return time.monotonic() - self._since >= QUIET_SECONDS and stolen_share(self._times) <= DISTURBING


REST = Rest()


def wait_for_quiet(limit_seconds: float) -> None:
    """Wait until the hypervisor has left the CPUs alone for ten seconds, or the limit is reached."""
    until = time.monotonic() + limit_seconds
    while time.monotonic() < until and not REST.was_quiet():
        begun = cpu_times()
        time.sleep(QUIET_SECONDS)
        if stolen_share(begun) <= DISTURBING:
            return


def when_quiet(what: str, measure: Callable[[], T]) -> T:
    """Measure until the hypervisor left the CPUs alone meanwhile, and return that measurement.

    Raises:
        AssertionError: each of ``MEASUREMENTS`` was disturbed; the message says by how much.
    """
    shares: list[float] = []
    for _ in range(MEASUREMENTS):
        begun = cpu_times()
        measured = measure()
        shares.append(stolen_share(begun))
        if shares[-1] <= DISTURBING:
            return measured
        wait_for_quiet(QUIET_SECONDS)
    taken = ", ".join(f"{share:.0%}" for share in shares)
    raise AssertionError(f"{what}: a hypervisor took {taken} of the CPU time, and {DISTURBING:.0%} is the most")


def own_diagnoses(status: Json, since: CpuTimes) -> list[Json]:
    """Return the job's diagnoses; without slow ranks that a hypervisor explains, where it took CPU time meanwhile."""
    found: list[Json] = status.get("diagnoses") or []
    if stolen_share(since) <= DISTURBING:
        return found
    return [
        note
        for note in found
        if not (note["what"] == "fail-slow, computation" and note["cause"] in SLOWED_BY_THE_MACHINE)
    ]
