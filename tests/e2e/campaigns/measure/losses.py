"""Compare the loss of each step with that of the same job without faults."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dev.kubectl import Kubectl
from tests.e2e.campaigns.progress import Progress
from tests.e2e.campaigns.stage import RANKS, manifest
from tests.e2e.jobs import Job

SECONDS_A_STEP: Final = 0.5  # at most, without a pause
START_SECONDS: Final = 120


def undisturbed(kubectl: Kubectl, folder: Path, last: int) -> dict[int, float]:
    """Run the same job without faults; return its loss by step."""
    (folder / "finish").write_text(str(last))
    job = Job(kubectl, manifest(kubectl, "undisturbed", folder, pause_seconds=0.0))
    seconds = START_SECONDS + last * SECONDS_A_STEP
    job.wait("the job without faults has succeeded", lambda s: s.get("state") == "Succeeded", seconds)
    progress = Progress(folder, RANKS)
    progress.newest()
    job.delete()
    return {step.step: step.loss for step in progress.steps[0]}


def compare(progress: Progress, expected: dict[int, float], last: int) -> list[str]:
    """Compare every step of every life, bit by bit; return what differs, in words."""
    progress.newest()
    made = {step.step for steps in progress.steps for step in steps}
    lacking = sorted(set(range(1, last + 1)) - made)
    other = sorted({step.step for steps in progress.steps for step in steps if step.loss != expected.get(step.step)})
    return [
        *([f"steps {lacking[:5]} of {last} were not made"] if lacking else []),
        *([f"the loss of {len(other)} steps differs, first of step {other[0]}"] if other else []),
    ]
