"""Show a job's failures in its own status."""

from __future__ import annotations

import msgspec

from falcon_operator.api.common import Condition
from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.base.ports import Kube
from falcon_operator.status.failures import FAILED, Failure
from falcon_operator.status.limits import SUMMARY, fit_text

replace = msgspec.structs.replace


class JobFailures:
    """``failure_reports.Shown`` for jobs."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def newest(self, of: TrainingJob) -> TrainingJob | None:
        """Return the job as stored now; None if it is gone or another has its name."""
        job = await self._kube.get_job(of.metadata.namespace, of.metadata.name)
        return job if job is not None and job.metadata.uid == of.metadata.uid else None

    async def write(self, of: TrainingJob, conditions: list[Condition], failure: Failure | None) -> None:
        """Write the conditions. A job that no look has described yet is shown as pending, with the failure."""
        status = replace(of.status, conditions=conditions)
        if failure is not None and not status.state:
            failed = next(condition for condition in conditions if condition.type == FAILED)
            ready = replace(failed, type="Ready", status="False")
            summary = fit_text(failure.message, SUMMARY)
            status = replace(status, state="Pending", summary=summary, conditions=[ready, *conditions])
        await self._kube.write_job_status(of, status)

    async def record(self, of: TrainingJob, type_: str, reason: str, note: str) -> bool:
        """Record an Event. Return whether it is there; never raises."""
        return await self._kube.record_event(of, type_, reason, note)
