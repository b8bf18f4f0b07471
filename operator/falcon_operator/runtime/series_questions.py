"""Pass on what users want to see of their jobs' series to the anomaly service, and hold its answers.

A user asks by an annotation of the TrainingJob, so that the API server decides who may (docs/adr/0164). No look at a
job waits for the service: its answer calls for the next look.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import structlog

from falcon_core.text import clip
from falcon_core.wire.overview import MOST_SECONDS, Overview
from falcon_operator.api.common import ANNOTATION_METRICS
from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.base.ports import Clock, SeriesAnswer

MOST_ASKED: Final = 63  # characters of the annotation
MOST_WAITING: Final = 256  # jobs whose question waits: more are answered that it did not fit
PAUSE_SECONDS: Final = 1.0  # between two questions
PAUSE_FACTOR: Final = 4.0  # times what the answer took: a fifth of the service's time is for questions
MOST_PAUSE_SECONDS: Final = 10.0  # a service that does not answer in time is no reason to let users wait longer
REST_SECONDS: Final = 10.0  # between two answers to one job
KEPT_SECONDS: Final = 600.0  # for which an answer waits to be shown
_SECONDS: Final = re.compile(r"\.([0-9]{1,5})$")
OFF: Final = "no anomaly service runs in this cluster: its platform sets anomalies.enabled in the chart"
log = structlog.get_logger(__name__)


class _Question(NamedTuple):
    asked: str
    namespace: str
    name: str


class SeriesQuestions:
    """Questions that wait, one of each job, and the newest answer to each.

    ``ask`` takes a job's uid and how many seconds are wanted, and raises where there is no answer: LookupError where
    the service has no series of the job. ``on_answer`` gets namespace and name of a job that has an answer.
    """

    def __init__(
        self, ask: Callable[[str, int], Awaitable[Overview]], clock: Clock, on_answer: Callable[[str, str], None]
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._on_answer = on_answer
        self._waiting: dict[str, _Question] = {}  # by job uid, in their order
        self._answers: dict[str, SeriesAnswer] = {}  # likewise; until the job's status shows it
        self._answered_at: dict[str, float] = {}  # by job uid, monotonic
        self._some = asyncio.Event()

    def of(self, job: TrainingJob) -> SeriesAnswer | None:
        """Return the answer that the job's status does not show yet; note the question where there is none."""
        uid, asked = job.metadata.uid, question_of(job)
        if not asked or _shows(job, asked):
            self._waiting.pop(uid, None)
            self._answers.pop(uid, None)
            return None
        known = self._answers.get(uid)
        if known is not None and known.asked == asked:
            return known
        if len(self._waiting) >= MOST_WAITING and uid not in self._waiting:
            return SeriesAnswer(
                asked=asked, at=self._clock.unix(), trouble=f"{MOST_WAITING} jobs are being asked about; try again"
            )
        self._waiting[uid] = _Question(asked, job.metadata.namespace, job.metadata.name)
        self._some.set()
        return None

    async def run(self) -> None:
        """Ask one question after the other, until cancelled."""
        while True:
            await self._some.wait()
            uid, began = self._next(), self._clock.monotonic()
            if uid is not None:
                await self._answer(uid, self._waiting.pop(uid))
            await asyncio.sleep(pause_after(self._clock.monotonic() - began))

    def _next(self) -> str | None:
        """Return the job that has waited longest, of those that have rested since their last answer."""
        if not self._waiting:
            self._some.clear()
            return None
        now = self._clock.monotonic()
        self._answered_at = {uid: at for uid, at in self._answered_at.items() if now - at < REST_SECONDS}
        return next((uid for uid in self._waiting if uid not in self._answered_at), None)

    async def _answer(self, uid: str, question: _Question) -> None:
        overview, trouble = None, ""
        try:
            overview = await self._ask(uid, seconds_of(question.asked))
        except LookupError:
            trouble = (
                "the anomaly service has no series of this job: they come two minutes after the ranks have begun to"
                " train, and the service drops them if the job needs too much memory"
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, the user is to read it, and the operator goes on
            trouble = clip(f"the anomaly service does not answer: {type(error).__name__}: {error}", 512)
            log.warning("no overview of a job's series", job=question.name, namespace=question.namespace, error=trouble)
        self._answered_at[uid], now = self._clock.monotonic(), self._clock.unix()
        # Of a job that was deleted meanwhile the answer is never fetched.
        self._answers = {known: each for known, each in self._answers.items() if now - each.at < KEPT_SECONDS}
        self._answers[uid] = SeriesAnswer(asked=question.asked, at=now, overview=overview, trouble=trouble)
        self._on_answer(question.namespace, question.name)


def pause_after(took_seconds: float) -> float:
    """Return the seconds between an answer that took so long and the next question."""
    return min(MOST_PAUSE_SECONDS, max(PAUSE_SECONDS, PAUSE_FACTOR * took_seconds))


def question_of(job: TrainingJob) -> str:
    """Return the annotation that asks for the series; "" where there is none."""
    return clip(job.metadata.annotations.get(ANNOTATION_METRICS, ""), MOST_ASKED)


def seconds_of(asked: str) -> int:
    """Return how many seconds are wanted: the number after the last dot of the question, else all."""
    found = _SECONDS.search(asked)
    return int(found.group(1)) if found is not None else MOST_SECONDS


def without_a_service(clock: Clock) -> Callable[[TrainingJob], SeriesAnswer | None]:
    """Return who answers each question where there is no anomaly service."""

    def answer(job: TrainingJob) -> SeriesAnswer | None:
        asked = question_of(job)
        if not asked or _shows(job, asked):
            return None
        return SeriesAnswer(asked=asked, at=clock.unix(), trouble=OFF)

    return answer


def _shows(job: TrainingJob, asked: str) -> bool:
    shown = job.status.metrics_check
    return shown is not None and shown.asked == asked
