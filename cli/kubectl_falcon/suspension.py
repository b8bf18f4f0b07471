"""Run ``kubectl falcon suspend`` and ``resume``: set spec.suspend, which Kueue uses as well, and explain the effect."""

from __future__ import annotations

from kubectl_falcon.kubectl import JOBS, Kubectl, find_job
from kubectl_falcon.objects import Job, job_of

ENDED = ("Succeeded", "Failed")


def set_suspended(kubectl: Kubectl, name: str, suspend: bool) -> tuple[str, bool]:
    """Suspend or resume a job. Return what that means, and whether it is as wished. Raises TroubleError."""
    job = job_of(find_job(kubectl, name))
    if job.state in ENDED:
        return f"{job.namespace}/{name} has ended ({job.state}): nothing to {'suspend' if suspend else 'resume'}", False
    if job.suspend is suspend:
        return f"{job.namespace}/{name} is {'suspended' if suspend else 'not suspended'} already; nothing changed", True
    kubectl.patch(JOBS, name, {"spec": {"suspend": suspend}})
    return (suspended_words(job) if suspend else resumed_words(job)), True


def suspended_words(job: Job) -> str:
    """Say what a suspension does to the job."""
    memory = (
        " The checkpoints in the pods' memory (spec.checkpoint.memory) are deleted with the pods: what is not also in"
        " files is lost."
        if job.checkpoint_memory
        else ""
    )
    return (
        f"{job.namespace}/{job.name} is suspended: all ranks get SIGTERM and end, then the job's"
        f" {job.replicas} pods are deleted, which frees their nodes. The job, its diagnoses and its counters stay."
        f"{memory} To resume it: kubectl falcon resume {job.name} -n {job.namespace}"
    )


def resumed_words(job: Job) -> str:
    """Say what a resumption does."""
    return (
        f"{job.namespace}/{job.name} is resumed: Falcon creates {job.replicas} new pods, and the ranks start as a new"
        " generation from the newest checkpoint that your program finds."
    )
