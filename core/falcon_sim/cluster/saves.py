"""Simulate the checkpoints of a job: where a restart begins, and what the operator learns of it."""

from __future__ import annotations

from falcon_sim.job.pipeline import Floats
from falcon_sim.job.scenario import Job


class Saves:
    """The newest checkpoint, which outlasts any loss. The job's first iteration begins from one."""

    def __init__(self, job: Job) -> None:
        self._every = job.checkpoint_every_iterations
        self._reports = job.reports_checkpoints
        self._at = 0.0
        self.iterations = 0  # of this generation, that it holds

    @property
    def reported_at(self) -> float | None:
        """Return the time of the save [s], as far as the ranks report it."""
        return self._at if self._reports else None

    def begin(self) -> None:
        """Begin a generation from it."""
        self.iterations = 0

    def after(self, made: int, ends: Floats) -> None:
        """Save after the newest of the generation's ``made`` iterations that is due.

        ``ends``: when the newest iterations ended, at least those since the last call [s].
        """
        since = made % self._every
        if made - since > self.iterations:
            self.iterations = made - since
            self._at = float(ends[-1 - since])
