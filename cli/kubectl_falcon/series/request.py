"""Ask for a look at a job's series by an annotation of the TrainingJob, and wait for the answer in its status.

So the API server decides who may ask: a user who may change the job (docs/adr/0164). No rank is touched.
"""

from __future__ import annotations

import secrets
import time

from kubectl_falcon.kubectl import JOBS, Kubectl, find_job
from kubectl_falcon.objects import Job, job_of
from kubectl_falcon.series.answer import Answer, answer_of
from kubectl_falcon.trouble import TroubleError

ANNOTATION = "falcon.dev/check-metrics"
LEAST_SECONDS, MOST_SECONDS = 60, 7200  # that the service looks back
LOOK_SECONDS = 0.5
LIVING = ("Starting", "Running", "Degraded", "Recovering")


def ask(kubectl: Kubectl, name: str, since_seconds: float, most_seconds: float) -> tuple[Job, Answer]:
    """Return the job and the answer. Raises TroubleError where there is none in ``most_seconds``."""
    job = job_of(find_job(kubectl, name))
    if job.state not in LIVING:
        raise TroubleError(
            f"{job.namespace}/{name} is {job.state or 'new'}: series are kept of jobs in state {', '.join(LIVING)}"
        )
    seconds = round(min(max(since_seconds, LEAST_SECONDS), MOST_SECONDS))
    # The random part tells this request from one that another user makes in the same second.
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    value = f"{stamp}-{secrets.token_hex(3)}.{seconds}"
    kubectl.patch(JOBS, name, {"metadata": {"annotations": {ANNOTATION: value}}})
    until = time.monotonic() + most_seconds
    while time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
        body = kubectl.get(JOBS, name)
        job, found = job_of(body), answer_of(body)
        if job.annotations.get(ANNOTATION) != value:
            raise TroubleError("another user has asked for this job's series meanwhile: ask again")
        if found is not None and found.asked == value:
            if found.state != "Done":
                raise TroubleError(f"the series cannot be shown: {found.result or found.state}")
            return job, found
    raise TroubleError(
        f"no answer within {most_seconds:.0f} s: is the operator running, and of this plugin's release or later?"
        " status.metricsCheck of the job will have it, and --wait waits longer"
    )
