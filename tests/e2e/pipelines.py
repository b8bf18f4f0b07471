"""A job of two pipeline stages with two data-parallel ranks each, for the tests that exchange its pods' roles."""

from __future__ import annotations

import statistics
from typing import Final

from dev.kubectl import Json, Kubectl, wait_for
from tests.e2e.jobs import Job, training_job, with_script

MANY: Final = 100_000
MEASURED_STEPS: Final = 20
SPARE: Final = {"key": "falcon.dev/spare", "operator": "Exists"}


def stages(kubectl: Kubectl, name: str, steps: int, *options: str, every: int = 50, overhead: int = 10) -> Json:
    """Return the job: four pods. The local cluster has four nodes for them, one of which is the spare.

    ``options``: of the script. ``overhead``: the price of an exchange of roles, s.
    """
    spec = {
        "parallelism": {"pipeline": 2},
        "checkpoint": {"memory": "64Mi", "copies": 1},
        "mitigation": {"strategies": [{"type": "Ignore"}, {"type": "SwapNodes", "overheadSeconds": overhead}]},
    }
    manifest = training_job(name, steps=steps, replicas=4, spec=spec)
    manifest["spec"]["template"]["spec"]["tolerations"] = [SPARE]
    return with_script(kubectl, manifest, "stages.py", "--steps", str(steps), "--every", str(every), *options)


def steps(job: Job) -> list[Json]:
    return [line for line in job.all_lines() if line["event"] == "step"]


def seconds(job: Job, since: float) -> float:
    """Return the median time of the newest steps, once so many were made since then (unix seconds)."""

    def newest() -> list[Json] | None:
        found = [step for step in steps(job) if step["unix_seconds"] > since]
        return found[-MEASURED_STEPS:] if len(found) >= MEASURED_STEPS else None

    found = wait_for("enough steps", newest, timeout_seconds=120, last_seen=lambda: str(steps(job)[-3:]))
    return statistics.median(step["step_seconds"] for step in found)


def median_between(job: Job, since: float, until: float) -> float:
    """Return the median time of the steps between two times (unix seconds)."""
    return statistics.median(each["step_seconds"] for each in steps(job) if since < each["unix_seconds"] < until)
