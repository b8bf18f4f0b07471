"""Keep one certificate for the agents of each job: make it at the first request, and again before it expires."""

from __future__ import annotations

import datetime as dt
from typing import Protocol

from falcon_operator.base.ports import Clock
from falcon_operator.bus import certs


class BusCertificates(Protocol):
    """The authority that signs the agents' certificates, and that with which agents verify the gateways'."""

    @property
    def jobs(self) -> certs.Pair: ...

    @property
    def control(self) -> bytes: ...


class Credentials:
    """What the agents of each job prove themselves with."""

    def __init__(self, certificates: BusCertificates, clock: Clock) -> None:
        self._certificates = certificates
        self._clock = clock
        self._pairs: dict[str, certs.Pair] = {}  # by the job's uid

    def of(self, job_uid: str) -> dict[str, bytes]:
        """Return the PEM files of a job's agents: ca.crt, jobs-ca.crt, tls.crt, tls.key (CN = job uid)."""
        now = dt.datetime.fromtimestamp(self._clock.unix(), dt.UTC)
        pair = self._pairs.get(job_uid)
        if pair is None or now >= certs.renew_at(pair.cert):
            pair = self._pairs[job_uid] = certs.issue_agents(self._certificates.jobs, job_uid, now)
        return {
            "ca.crt": self._certificates.control,
            "jobs-ca.crt": self._certificates.jobs.cert,
            "tls.crt": pair.cert,
            "tls.key": pair.key,
        }

    def forget(self, job_uid: str) -> None:
        """Forget a job that is gone."""
        self._pairs.pop(job_uid, None)
