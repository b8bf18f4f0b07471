"""What the launcher's newest measurement of the machine has found: read once, when it is over."""

from __future__ import annotations

from falcon_agent.run_dir import RunDir
from falcon_core.wire.check import MAX_TEXT, CheckReport, read_printed
from falcon_core.wire.launch import LaunchStatus


class Checks:
    """The newest measurement."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._newest: CheckReport | None = None

    def of(self, status: LaunchStatus | None) -> CheckReport | None:
        """Return the measurement that is over, while no rank runs: nobody waits for it any more afterwards."""
        if status is None or status.check is None or status.check.running or status.state not in ("Idle", "Stopped"):
            return None
        number, error = status.check.number, status.check.error
        if self._newest is None or self._newest.number != number:
            self._newest = (
                CheckReport(number, why=error[:MAX_TEXT]) if error else read_printed(number, self._run_dir.check())
            )
        return self._newest
