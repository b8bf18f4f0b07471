"""What the launcher's newest measurement of the machine has found, and how far its links to the others are measured."""

from __future__ import annotations

import msgspec

from falcon_agent.run_dir import RunDir
from falcon_core.wire.check import MAX_TEXT, CheckReport, read_printed
from falcon_core.wire.check_links import read_links
from falcon_core.wire.launch import LaunchCheck, LaunchStatus


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
        """Return the measurement that is over, while no rank runs: nobody waits for it any more afterwards."""
        if status is None or status.check is None or status.check.running or status.state not in ("Idle", "Stopped"):
            return None
        check = status.check
        links = read_links(check.number, self._run_dir.links(), running=check.linking, error=check.links_error)
        return msgspec.structs.replace(self._of_machine(check), links=links)

    def _of_machine(self, check: LaunchCheck) -> CheckReport:
        if self._machine is None or self._machine.number != check.number:
            self._machine = (
                CheckReport(check.number, why=check.error[:MAX_TEXT])
                if check.error
                else read_printed(check.number, self._run_dir.check())
            )
        return self._machine
