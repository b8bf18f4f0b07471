"""Record what a job's ranks import: sent from a pod that trains, and kept in a pod that stands by."""

from __future__ import annotations

import structlog

from falcon_agent.launch.run_dir import RunDir
from falcon_core.wire.launcher.imports import Imports, pack, unpack
from falcon_core.wire.launcher.launch import LaunchStatus
from falcon_core.wire.reporting.messages import Plan

_log = structlog.get_logger()


class ImportRecord:
    """The record as this pod has it."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._epoch = 0
        self._packed = b""  # that was handed to this pod
        self._sent: tuple[int, bytes] = (0, b"")  # by generation

    @property
    def known(self) -> bool:
        """Check whether this pod was handed a record."""
        return bool(self._packed)

    def take(self, imports: Imports) -> bool:
        """Write a record for the launcher; return whether it is news. The record of an earlier leader is ignored."""
        # A stalled former leader may still send its record.
        if imports.epoch < self._epoch or imports.packed == self._packed:
            return False
        try:
            self._run_dir.write_imports(unpack(imports.packed))
        except ValueError as error:
            _log.warning("standbys import nothing ahead", error=str(error))
            return False
        self._epoch, self._packed = imports.epoch, imports.packed
        return True

    def asked(self, plan: Plan | None, pod_uid: str, status: LaunchStatus | None) -> bytes:
        """Return the ranks' record, where the plan asks this pod for it; else nothing.

        Only where a standby of this pod waits: there it has been seen that the command can be held before its program.
        """
        if plan is None or plan.imports_of != pod_uid or status is None or status.generation != plan.generation:
            return b""
        if status.standby is None or not status.standby.ready:
            return b""
        if self._sent[0] != plan.generation:
            self._sent = (plan.generation, pack(self._run_dir.imports()))
        return self._sent[1]
