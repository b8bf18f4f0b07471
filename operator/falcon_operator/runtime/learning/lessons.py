"""Give the anomaly service a lesson each minute: which jobs train, of which kind, and whether all is well.

The leader alone does so. It reads the ConfigMap, passes it on with what it knows of the jobs, and writes what the
service returns under the version that it has read. A lesson that fails, or a write that another writer has overtaken,
costs nothing: the next lesson has all of it. Without lessons the service uses the shipped limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec
import structlog

from falcon_core.job_kind import kind_of
from falcon_core.wire.lessons import MAX_JOBS, JobLesson, Lesson, Models, decode_learned, encode_lesson
from falcon_operator.api.trainingjob import TrainingJob, TrainingJobStatus
from falcon_operator.base.ports import Clock, Conflict, LeadershipLost
from falcon_operator.cluster.model_map import Stored
from falcon_operator.status.comparisons import CAUSES

LESSON_SECONDS = 60.0
FORGOTTEN_SECONDS: Final = 120.0  # without a look at a job: it is gone
DAY_SECONDS: Final = 86_400
WELL: Final = frozenset({"Starting", "Running"})
ALIVE: Final = WELL | {"Degraded", "Recovering"}
log = structlog.get_logger(__name__)


class Shelf(Protocol):
    """Where learned limits are kept."""

    async def read(self) -> Stored: ...

    async def write(self, before: Stored, models: Models) -> None: ...


class _Seen(msgspec.Struct):
    """What the looks at a job have shown since the last lesson."""

    uid: str
    spec_generation: int  # metadata.generation: another one may have another template
    kind: str
    generation: int  # of the processes
    quiet: bool
    at: float  # monotonic, of the newest look


class Lessons:
    """All jobs whose ranks live. ``ask`` passes a lesson on and returns the service's answer, both encoded."""

    def __init__(self, ask: Callable[[bytes], Awaitable[bytes]], shelf: Shelf, clock: Clock) -> None:
        self._ask = ask
        self._shelf = shelf
        self._clock = clock
        self._jobs: dict[str, _Seen] = {}  # by uid
        self._trouble = ""  # why the last lesson failed

    def see(self, job: TrainingJob, generation: int, status: TrainingJobStatus) -> None:
        """Note a look at a job, and the status that follows from it."""
        uid = job.metadata.uid
        if status.state not in ALIVE:
            self._jobs.pop(uid, None)
            return
        known = self._jobs.get(uid)
        quiet = is_quiet(status)
        if known is None or known.spec_generation != job.metadata.generation:
            kind = kind_of(job.metadata.namespace, _as_stored(job))
            known = _Seen(uid, job.metadata.generation, kind, generation, True, 0.0)
            self._jobs[uid] = known
        # Trouble between two lessons may be over at the next one. Another generation begins without it.
        known.quiet = quiet and (known.quiet or known.generation != generation)
        known.generation, known.at = generation, self._clock.monotonic()

    async def run(self) -> None:
        """Give one lesson after the other, until cancelled. Raises LeadershipLost."""
        while True:
            await asyncio.sleep(LESSON_SECONDS)
            try:
                await self.give()
            except LeadershipLost:
                raise
            except Conflict:
                log.debug("another writer has changed what was learned; the next lesson has it all")
            except Exception as error:  # noqa: BLE001 - the operator leads as well without learned limits
                self._failed(f"{type(error).__name__}: {error}")
            else:
                self._trouble = ""

    async def give(self) -> None:
        """Give one lesson, and store what has changed. Raises what the API server and the service raise."""
        stored = await self._shelf.read()
        self._forget()
        # A job says it was quiet from one lesson to the next; what comes during this lesson belongs to the next.
        jobs = [
            JobLesson(uid=each.uid, generation=each.generation, kind=each.kind, quiet=each.quiet)
            for each in list(self._jobs.values())[:MAX_JOBS]
        ]
        day = int(self._clock.unix() // DAY_SECONDS)
        answer = await self._ask(encode_lesson(Lesson(day=day, jobs=jobs, models=stored.models)))
        learned = decode_learned(answer)
        for lesson in jobs:
            if (seen := self._jobs.get(lesson.uid)) is not None and not lesson.quiet:
                seen.quiet = True
        if learned.models is not None:
            await self._shelf.write(stored, learned.models)

    def _forget(self) -> None:
        now = self._clock.monotonic()
        self._jobs = {uid: seen for uid, seen in self._jobs.items() if now - seen.at <= FORGOTTEN_SECONDS}

    def _failed(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.warning("the anomaly service learns nothing", error=trouble)
        self._trouble = trouble


def is_quiet(status: TrainingJobStatus) -> bool:
    """Check whether a job starts or trains without trouble.

    Verdicts of the anomaly service are no trouble here: it knows them itself, and weighs those that learned limits
    alone have raised.
    """
    troubles = (note for note in status.diagnoses if note.state != "Resolved" and note.cause not in CAUSES)
    return status.state in WELL and next(troubles, None) is None


def _as_stored(job: TrainingJob) -> dict[str, Any]:
    spec = job.spec
    return {
        "container": spec.container,
        "template": spec.template,
        "replicas": spec.replicas,
        "procsPerReplica": spec.procs_per_replica,
        "parallelism": msgspec.to_builtins(spec.parallelism),
    }
