"""Ask the anomaly service for its verdicts, and hold its newest answer.

The service is not needed: while it does not answer, or answers what cannot be read, there soon are no verdicts, and no
look at a job fails because of it. The operator shows the certificate of ``root``, which the service asks for.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from http import HTTPStatus

import aiohttp
import structlog

from falcon_core.wire.verdicts import MAX_ANSWER_BYTES, Answer, JobVerdicts, VerdictsError, decode_answer
from falcon_gateway import Tls
from falcon_operator.base.ports import Clock, JobFindings

ASK_SECONDS = 10.0  # between two questions: the service looks as often
STALE_SECONDS = 60.0  # after so long without an answer there are no verdicts
_ANSWER_SECONDS = 5.0
log = structlog.get_logger(__name__)


class AnomalyVerdicts:
    """The newest answer of the service at ``address`` (host:port).

    ``on_change`` gets namespace and name of each job whose verdicts begin, change their subject or end.
    """

    def __init__(self, address: str, tls: Tls, clock: Clock, on_change: Callable[[str, str], None]) -> None:
        self._address = address
        self._tls = tls
        self._clock = clock
        self._on_change = on_change
        self._since = clock.monotonic()
        self._answered_at: float | None = None  # monotonic
        self._jobs: dict[str, JobVerdicts] = {}  # by uid
        self._trouble = ""  # why the last question had no answer
        self.failures = 0  # questions without an answer that can be read

    @property
    def answers(self) -> bool:
        """Check whether the newest question was answered."""
        return self._answered_at is not None and not self._trouble

    def of(self, job_uid: str) -> JobFindings | None:
        """Return what the service finds of a job; None while it is not known yet, soon after the operator's start."""
        now = self._clock.monotonic()
        if self._answered_at is None:
            return None if now - self._since <= STALE_SECONDS else JobFindings()
        age = now - self._answered_at
        job = self._jobs.get(job_uid)
        if job is None or age > STALE_SECONDS:
            return JobFindings()
        return JobFindings(generation=job.generation, age_seconds=age, verdicts=tuple(job.verdicts))

    async def run(self) -> None:
        """Ask again and again, until cancelled."""
        while True:
            try:
                answer = decode_answer(await get(self._address, self._tls, "/v1/verdicts", MAX_ANSWER_BYTES))
            except Exception as error:  # noqa: BLE001 - the operator leads as well without verdicts, whatever it is
                self._failed(f"{type(error).__name__}: {error}")
            else:
                self._take(answer)
            await asyncio.sleep(ASK_SECONDS)

    def _take(self, answer: Answer) -> None:
        if self._trouble:
            log.info("the anomaly service answers again", address=self._address)
        self._trouble = ""
        self._answered_at = self._clock.monotonic()
        before, self._jobs = self._jobs, {job.uid: job for job in answer.jobs}
        for uid in before.keys() | self._jobs.keys():
            old, new = before.get(uid), self._jobs.get(uid)
            job = new or old
            if job is not None and _subjects(old) != _subjects(new):
                self._on_change(job.namespace, job.name)

    def _failed(self, trouble: str) -> None:
        self.failures += 1
        if not self._trouble:
            log.warning("the anomaly service does not answer", address=self._address, error=trouble)
        self._trouble = trouble


async def get(address: str, tls: Tls, path: str, most_bytes: int) -> bytes:
    """Return the body of one of the service's pages. Each question has a connection: renewed certificates are taken up.

    Raises LookupError for what the service does not have, VerdictsError for another status than 200 or a body that is
    too large, and what aiohttp and ssl raise.
    """
    return await _answer("GET", address, tls, path, b"", most_bytes)


async def post(address: str, tls: Tls, path: str, body: bytes, most_bytes: int) -> bytes:
    """Send a body to one of the service's pages, and return the answer's. Raises what ``get`` raises."""
    return await _answer("POST", address, tls, path, body, most_bytes)


async def _answer(method: str, address: str, tls: Tls, path: str, sent: bytes, most_bytes: int) -> bytes:
    context = ssl.create_default_context(cafile=str(tls.ca))
    context.load_cert_chain(str(tls.cert), str(tls.key))
    timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.request(
            method, f"https://{address}{path}", data=sent or None, ssl=context, allow_redirects=False
        ) as response,
    ):
        if response.status == HTTPStatus.NOT_FOUND:
            raise LookupError(path)
        if response.status != HTTPStatus.OK:
            raise VerdictsError(f"HTTP status {response.status}")
        body = bytearray()
        async for part in response.content.iter_any():
            body += part
            # A length that is not announced must not fill the operator's memory.
            if len(body) > most_bytes:
                raise VerdictsError(f"more than {most_bytes} bytes")
        return bytes(body)


def _subjects(job: JobVerdicts | None) -> set[tuple[int, str, int, str]]:
    """Return what the verdicts are about, without figures that move at each answer."""
    return set() if job is None else {(job.generation, each.kind, each.rank, each.metric) for each in job.verdicts}
