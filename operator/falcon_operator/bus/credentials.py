"""Keep a certificate for the agents of each job: made at the first request, again in time, and by a new authority."""

from __future__ import annotations

import datetime as dt
from typing import Protocol

from falcon_operator.base.ports import Clock
from falcon_operator.bus import certs


class BusCertificates(Protocol):
    """What holds now: who signs the agents' certificates, and PEM of who is trusted as such, and for the gateways."""

    @property
    def jobs(self) -> certs.Pair: ...

    @property
    def jobs_trusted(self) -> bytes: ...

    @property
    def control(self) -> bytes: ...


class Credentials:
    """What the agents of each job prove themselves with."""

    def __init__(self, certificates: BusCertificates, clock: Clock) -> None:
        self._certificates = certificates
        self._clock = clock
        self._issued: dict[str, tuple[bytes, certs.Pair]] = {}  # by the job's uid: the authority, and what it signed

    def of(self, job_uid: str) -> dict[str, bytes]:
        """Return the PEM files of a job's agents: ca.crt, jobs-ca.crt, tls.crt, tls.key (CN = job uid)."""
        now = dt.datetime.fromtimestamp(self._clock.unix(), dt.UTC)
        authority = self._certificates.jobs
        by, pair = self._issued.get(job_uid, (b"", None))
        if pair is None or by != authority.cert or now >= certs.renew_at(pair.cert):
            pair = certs.issue_agents(authority, job_uid, now)
            self._issued[job_uid] = authority.cert, pair
        return {
            "ca.crt": self._certificates.control,
            "jobs-ca.crt": self._certificates.jobs_trusted,
            "tls.crt": pair.cert,
            "tls.key": pair.key,
        }

    @property
    def first_expiry(self) -> float | None:
        """Return when the first certificate of a job expires, unix seconds; None where there is none."""
        return min((certs.expires_unix(pair.cert) for _, pair in self._issued.values()), default=None)

    def forget(self, job_uid: str) -> None:
        """Forget a job that is gone."""
        self._issued.pop(job_uid, None)
