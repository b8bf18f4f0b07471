"""Run ``kubectl falcon check``: pause all ranks for about a second while machines and links are measured.

It is asked for by an annotation of the TrainingJob, so that the cluster's own rights decide who may. The operator
answers in ``status.check``.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

from kubectl_falcon.kubectl import JOBS, Kubectl, find_job
from kubectl_falcon.objects import Check, Job, job_of
from kubectl_falcon.trouble import TroubleError

ANNOTATION = "falcon.dev/check"
LOOK_SECONDS = 1.0
TRAINING = ("Running", "Degraded")


@dataclass(frozen=True)
class Answer:
    """What a check has found: the lines to print. ``good``: nothing is slow."""

    lines: list[str]
    good: bool


def check(kubectl: Kubectl, name: str, most_seconds: float) -> Answer:
    """Ask for a check, and wait for its result. Raises TroubleError where there is none in so many seconds."""
    job = job_of(find_job(kubectl, name))
    if job.state not in TRAINING:
        raise TroubleError(
            f"{job.namespace}/{name} is {job.state or 'new'}: a check needs a job in state {' or '.join(TRAINING)};"
            " try again then"
        )
    if job.check is not None and job.check.state == "Running":
        raise TroubleError(
            f"a check of {job.namespace}/{name} is running: kubectl describe ftj {name} shows its result"
        )
    # The random part tells this request from one that another user makes in the same second.
    value = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(3)}"
    kubectl.patch(JOBS, name, {"metadata": {"annotations": {ANNOTATION: value}}})
    until = time.monotonic() + most_seconds
    while time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
        job = job_of(kubectl.get(JOBS, name))
        if job.annotations.get(ANNOTATION) != value:
            raise TroubleError(
                "another check was requested for this job, and replaced this one: kubectl describe ftj shows its result"
            )
        if job.check is not None and job.check.asked == value and job.check.state in ("Done", "Failed"):
            return answer(job, job.check)
    raise TroubleError(
        f"no result within {most_seconds:.0f} s: {_why_late(job)}; status.check of the job will have it, and --wait"
        " waits longer"
    )


def _why_late(job: Job) -> str:
    if job.check is not None and job.check.state == "Waiting":
        return "the check waits until the last pause is a minute ago and no repair is running"
    return "the job's ranks are being measured" if job.check is not None else "the operator has not seen it yet"


def answer(job: Job, found: Check) -> Answer:
    """Return what a check that is over has found. Raises TroubleError where nothing could be measured."""
    if found.state == "Failed":
        raise TroubleError(f"nothing could be measured: {found.result}")
    stood = f"all ranks were paused for {found.standstill_seconds:.1f} s" if found.standstill_seconds else ""
    head = f"{job.namespace}/{job.name}: {found.result}{f'; {stood}' if stood else ''}"
    return Answer([head, *(f"  slow: {each}" for each in found.slow)], not found.slow)
