"""Read the launcher's newest measurements: of the machine and its links before a start, and during one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from falcon_agent.launch.run_dir import RunDir
from falcon_core.wire.launcher.launch import LaunchCheck, LaunchStatus
from falcon_core.wire.measurement.check import MAX_TEXT, CheckReport, read_printed
from falcon_core.wire.measurement.check_links import read_links

REPORTED_SECONDS: Final = 30.0  # of a smoke test: the operator waits a few seconds at most


class Checks:
    """The newest measurement."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._machine: CheckReport | None = None  # read once: nothing is added to it
        self._reported: CheckReport | None = None

    def look(self, status: LaunchStatus | None) -> bool:
        """Check whether there is something new to report."""
        before, self._reported = self._reported, self.of(status)
        return self._reported is not None and self._reported != before

    def of(self, status: LaunchStatus | None) -> CheckReport | None:
        """Return the measurement that is over, while no rank runs: afterwards nothing waits for it."""
        if status is None or status.check is None or status.check.running or status.state not in ("Idle", "Stopped"):
            return None
        check = status.check
        links = read_links(check.number, self._run_dir.links(), running=check.linking, error=check.links_error)
        return msgspec.structs.replace(self._of_machine(check), links=links)

    def _of_machine(self, check: LaunchCheck) -> CheckReport:
        if self._machine is None or self._machine.number != check.number:
            self._machine = _read(check, self._run_dir.check)
        return self._machine


class Smoke:
    """The newest smoke test, which the operator needs only for a moment: it runs while the ranks start."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._found: CheckReport | None = None
        self._until = 0.0  # monotonic

    def look(self, status: LaunchStatus | None, now: float) -> bool:
        """Check whether a test has ended since the last look. ``now``: monotonic seconds."""
        smoke = status.smoke if status is not None else None
        if smoke is None or smoke.running or (self._found is not None and self._found.number == smoke.number):
            return False
        self._found = _read(smoke, self._run_dir.smoke)
        self._until = now + REPORTED_SECONDS
        return True

    def of(self, now: float) -> CheckReport | None:
        """Return the test that has ended not long ago."""
        return self._found if now < self._until else None


def _read(check: LaunchCheck, printed: Callable[[], bytes]) -> CheckReport:
    if check.error:
        return CheckReport(check.number, why=check.error[:MAX_TEXT])
    return read_printed(check.number, printed())
