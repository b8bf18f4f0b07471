"""Print the demo's view of the cluster: a few lines for each phase, each with the time since the start."""

from __future__ import annotations

import time
from typing import Any

from dev.kubectl import Kubectl, wait_for

Json = dict[str, Any]


class Story:
    """The demo's story of one job on one cluster."""

    def __init__(self, kubectl: Kubectl, job: str) -> None:
        self._kubectl = kubectl
        self._job = job
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line with the time since the start."""
        print(f"[{time.monotonic() - self._started:6.1f} s] {text}", flush=True)

    def show(self, *args: str) -> str:
        """Run a kubectl command as a user would type it, print it and its output, and return the output."""
        print(f"\n  $ kubectl {' '.join(args)}")
        text = self._kubectl.run(*args)
        print("\n".join(f"  {line}" for line in text.rstrip().splitlines()) + "\n", flush=True)
        return text

    def job(self) -> Json:
        """Return the job. Raises RuntimeError when it was deleted."""
        found = self._kubectl.get("trainingjob", self._job)
        if found is None:
            raise RuntimeError(f"trainingjob {self._job} is gone: was it deleted while the demo ran?")
        return found

    def status(self) -> Json:
        return dict(self.job().get("status", {}))

    def node_of_rank(self, rank: int) -> str:
        """Return the node that holds a rank of the current generation (one process a pod)."""
        run = self._kubectl.get("trainingrun", self._job)
        if run is None:
            raise RuntimeError(f"trainingrun {self._job} is gone: was it deleted while the demo ran?")
        return str(run["spec"]["members"][rank]["node"])

    def wait(self, what: str, look: Any, timeout_seconds: float) -> Json:
        """Wait until ``look(status)`` is true; until then, print every change of the job's summary."""
        last_line = ""
        seen: list[Json] = [{}]

        def check() -> Json | None:
            nonlocal last_line
            status = self.status()
            seen[0] = status
            line = f"{status.get('state', '')}: {status.get('summary', '')}"
            if line != last_line:
                last_line = line
                self.say(f"  {line}")
            return status if look(status) else None

        return wait_for(
            what, check, timeout_seconds=timeout_seconds, last_seen=lambda: f"last: {last_line or 'no status yet'}"
        )

    def describe_status(self) -> None:
        """Print the status part of `kubectl describe trainingjob`, with the diagnoses."""
        print(f"\n  $ kubectl describe trainingjob {self._job}        (from Status on)")
        text = self._kubectl.run("describe", "trainingjob", self._job)
        lines = text.splitlines()
        start = next((i for i, line in enumerate(lines) if line.startswith("Status:")), 0)
        print("\n".join(f"  {_shortened(line)}" for line in lines[start:]) + "\n", flush=True)


def _shortened(line: str, width: int = 180) -> str:
    return line if len(line) <= width else f"{line[:width]} …"


def iteration_ms(status: Json) -> float | None:
    """Return the job's current iteration time in milliseconds; None before it is known."""
    micros = status.get("iterations", {}).get("currentMicroseconds")
    return None if micros is None else micros / 1000
