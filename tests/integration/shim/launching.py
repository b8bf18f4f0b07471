"""A launcher under test, with the test in the agent's place."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import msgspec

from falcon_agent.launch.output_file import OutputReader
from falcon_agent.launch.run_dir import TAIL_BYTES
from falcon_core.wire.launcher.launch import LaunchCheck, LaunchPlan, LaunchStatus, Standby, render_plan
from falcon_core.wire.measurement.check import CheckReport, read_printed

SHIM = Path(os.environ.get("SHIM_OUT", ""))


def wait_for(path: Path, timeout_seconds: float = 60, *, gone: bool = False) -> None:
    """Wait until a path exists, or is ``gone``."""
    deadline = time.monotonic() + timeout_seconds
    while path.exists() == gone:
        assert time.monotonic() < deadline, f"{path} is {'still' if gone else 'not'} there"
        time.sleep(0.02)


class Launcher:
    """One launcher with its run directory."""

    def __init__(
        self,
        run_dir: Path,
        *command: str,
        options: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        before: tuple[str, ...] = (),
    ) -> None:
        """Start it. ``before``: words before its command, that put it into a machine."""
        self.run_dir = run_dir
        (run_dir / "agent").mkdir(parents=True, exist_ok=True)
        (run_dir / "agent" / "alive").touch()
        self.process = subprocess.Popen(
            [*before, str(SHIM / "falcon-launch"), "run", "--run-dir", str(run_dir), *options, "--", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(run_dir), **(environment or {})},  # torchrun leaves its files behind
        )

    def plan(self, plan: LaunchPlan) -> None:
        self._plan = plan
        fresh = self.run_dir / "agent" / "plan.new"
        fresh.write_text(render_plan(plan))
        fresh.rename(self.run_dir / "agent" / "plan")

    def run(
        self,
        generation: int = 1,
        procs: int = 1,
        port: int = 29511,
        retries: int = 0,
        standby: Standby = "None",
        next_port: int = 0,
        address: str = "127.0.0.1",
    ) -> None:
        """Start a generation. ``standby``: what waits beside it once :meth:`settle` says so."""
        self.plan(
            LaunchPlan(
                generation=generation,
                phase="Run",
                world_size=procs,
                nnodes=1,
                procs=procs,
                master_addr=address,
                master_port=port,
                retries=retries,
                standby=standby,
                next_master_port=next_port,
            )
        )

    def settle(self) -> None:
        """Say that training runs as it will, so that standbys may be made."""
        self.plan(msgspec.structs.replace(self._plan, settled=1))

    def finish(self, generation: int = 1, exit_code: int = 0) -> tuple[str, str]:
        """End the launcher; return its standard output and error."""
        self.plan(LaunchPlan(generation=generation, phase="Finish", exit_code=exit_code))
        out, err = self.process.communicate(timeout=60)
        return out.decode(), err.decode()

    def status(self) -> LaunchStatus | None:
        path = self.run_dir / "launch" / "status.json"
        return msgspec.json.decode(path.read_bytes(), type=LaunchStatus) if path.exists() else None

    def measured(self, number: int, what: str = "check") -> LaunchCheck:
        """Wait for the end of a measurement; ``what``: check, or smoke."""
        deadline = time.monotonic() + 60
        while True:
            status = self.status()
            found: LaunchCheck | None = getattr(status, what, None)
            if found is not None and found.number == number and not found.running:
                return found
            assert time.monotonic() < deadline, status
            time.sleep(0.02)

    def printed(self, number: int, what: str = "check") -> CheckReport:
        """Return what a measurement has found."""
        return read_printed(number, (self.run_dir / "launch" / what).read_bytes())

    def tail(self, local_rank: int, generation: int = 1) -> bytes:
        """Return the newest bytes of a process's output, as the agent reads them at its end."""
        reader = OutputReader(self.run_dir / "launch" / f"output.{local_rank}", generation)
        try:
            return reader.tail(TAIL_BYTES)
        finally:
            reader.close()

    def wait(self, timeout_seconds: float = 60, **wanted: object) -> LaunchStatus:
        deadline = time.monotonic() + timeout_seconds
        while True:
            status = self.status()
            if status is not None and all(getattr(status, name) == value for name, value in wanted.items()):
                return status
            assert time.monotonic() < deadline, f"wanted {wanted}, saw {status}"
            time.sleep(0.02)
