"""Hold the series of all jobs in bounded memory, and look at them within a budget of CPU time.

One thread does all of it. Where all boards together take more than there is room for, the largest is given up until an
hour has passed, and a look that takes long makes the next ones wait. What users ask for (``Jobs.overview``) is no part
of the looks' budget: one user could stop the looks at all jobs. A board belongs to one generation of a job: another one
begins with an empty board.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import structlog

from falcon_anomaly import judge
from falcon_anomaly import overview as overviews
from falcon_anomaly.detectors.peers import LONG_HISTORY, Limit, Usual
from falcon_anomaly.inbox import FRAME_BYTES, Arrival
from falcon_anomaly.learning.library import Library
from falcon_anomaly.learning.probation import Probation
from falcon_anomaly.learning.reach import EACH_WINDOWS, reaches
from falcon_anomaly.queries.joining import Joined, Known
from falcon_anomaly.series import board
from falcon_anomaly.series.board import Board
from falcon_core.wire import verdicts as wire
from falcon_core.wire.lessons import Learned, Lesson
from falcon_core.wire.overview import Overview
from falcon_core.wire.series import CONTAINER, WINDOW_SECONDS, Chunk, Phase, SeriesFormatError, decode_chunk

MOST_JOBS: Final = 1024
MOST_PODS: Final = 10_000  # of a job
FORGOTTEN_SECONDS: Final = 1800.0  # after the last chunk of a job
BOARD_SHARE: Final = 0.75  # of the memory of all boards, for one of them
GIVEN_UP_SECONDS: Final = 3600.0  # for which a job whose board was too large sends in vain
SETTLING_SECONDS: Final = (
    90.0  # after a generation's first chunk, until each pod has sent one: the board's size is known
)
MOST_SETTLING_BYTES: Final = 4 << 20  # of the chunks that wait for it
MOST_EARLY_SECONDS: Final = 180.0  # by which Prometheus may be ahead of the agents, who send each minute
_OF_RANKS_TOO: Final = frozenset({"cpu"})  # metrics that a container has, and each of its ranks
LOOK_SECONDS: Final = 10.0
OVERVIEW_SECONDS: Final = 2.0  # of CPU time for an overview: metrics that do not fit are not compared
BUDGET_SECONDS: Final = 1.0  # of CPU time for looks at all jobs in ``LOOK_SECONDS``: a tenth of a core
MEASURE_SECONDS: Final = EACH_WINDOWS * WINDOW_SECONDS  # between two measurements of what a healthy job shows
LESSON_HOLDS_SECONDS: Final = 3600.0  # after which learned limits hold no longer, if no other lesson came
MOST_MEASURE_SECONDS: Final = 1.0  # of CPU time for one: a larger job teaches nothing, since it would cost too much
log = structlog.get_logger("falcon_anomaly")


class Figures(msgspec.Struct, kw_only=True):
    """What /metrics tells of the boards."""

    jobs: int = 0  # that have a board
    bytes: int = 0  # of all boards
    chunks: int = 0
    malformed: int = 0  # chunks that are none
    unwanted: int = 0  # chunks of jobs that were given up, or of an earlier generation
    given_up: int = 0  # boards that took too much memory
    refused: int = 0  # ranks, metrics and windows out of a board's bounds
    look_seconds: float = 0.0  # CPU time of all looks and overviews
    looks: int = 0
    postponed: int = 0  # looks that had to wait for the next turn's budget
    failed: int = 0  # looks that ended with an error
    overviews: int = 0  # that users have requested
    lessons: int = 0  # that the operator has given
    kinds: int = 0  # of jobs, of which something is learned or being learned
    damaged_kinds: int = 0  # whose stored text could not be read


class _Early(NamedTuple):
    """One window of a metric of Prometheus."""

    name: str
    end: float  # on the service's clock
    ranks: npt.NDArray[np.intp]
    values: npt.NDArray[np.float32]


class _Job:
    """One job's board, and what the looks at it remember."""

    def __init__(self, arrival: Arrival, generation: int, most_values: int) -> None:
        self._most_values = most_values
        self.uid, self.namespace, self.name = arrival.job_uid, arrival.namespace, arrival.job
        self.generation = generation
        self.board: Board | None = None  # None until it is known how many ranks there are
        self.state = judge.State()
        self.found: list[judge.Verdict] = []
        self.found_at = 0.0
        self.kind = ""  # as the operator names it; "": not yet
        self.limits: Mapping[str, Limit] = judge.NOTHING_LEARNED
        self.probation = Probation()
        self.measured_at = -math.inf
        self.heard_at = arrival.at
        self._began_at = math.inf  # when the first chunk's last window ended
        self._settling: list[Arrival] = []
        self._settling_bytes = 0
        self._ranks = 1
        self._ranks_per_pod = 1
        self._ends: dict[str, float] = {}  # by pod uid: when its newest window ended
        self._interrupted: set[int] = set()  # windows in which a pod did something else than train
        self.pods: dict[str, Known] = {}  # by uid
        self._early: list[_Early] = []  # what Prometheus said of windows that no agent has sent yet

    @property
    def byte_size(self) -> int:
        """Return the memory of the board, or of what waits for it, in bytes."""
        return self._settling_bytes if self.board is None else self.board.byte_size

    def take(self, arrival: Arrival, chunk: Chunk) -> None:
        """Put the chunk's windows onto the board, or keep it until there is one."""
        self.heard_at = max(self.heard_at, arrival.at)
        ranks = [rank for rank in chunk.ranks if rank != CONTAINER]
        self._ranks = max(self._ranks, max(ranks, default=0) + 1)
        self._ranks_per_pod = max(self._ranks_per_pod, len(ranks))
        if ranks and (arrival.pod_uid in self.pods or len(self.pods) < MOST_PODS):
            self.pods[arrival.pod_uid] = Known(self.uid, self.namespace, tuple(sorted(ranks)))
        if self.board is not None and self.board.ranks < min(self._ranks, board.MOST_RANKS):
            # Of a rank that came late there is no history: the peers' would compare with nothing. Others may follow,
            # and a board for each of them would take the time of other jobs.
            self.board, self.state, self.found = None, judge.State(), []
            self.probation = Probation()
            self._began_at = math.inf
        if self.board is not None:
            self._enter(arrival, chunk)
            return
        self._settling.append(arrival)
        self._settling_bytes += len(arrival.payload) + FRAME_BYTES
        end = arrival.at - chunk.age_ms / 1e3
        self._began_at = min(self._began_at, end)
        self.settle(end)

    def settle(self, now: float) -> None:
        """Make the board when each pod has had time to send a chunk, or when too many wait."""
        if self.board is not None:
            return
        if now - self._began_at < SETTLING_SECONDS and self._settling_bytes <= MOST_SETTLING_BYTES:
            return
        self.board = Board(self._ranks, ranks_per_pod=self._ranks_per_pod, most_values=self._most_values)
        waiting, self._settling, self._settling_bytes = self._settling, [], 0
        for arrival in waiting:
            self._enter(arrival, decode_chunk(arrival.payload))  # it was decoded before

    def _enter(self, arrival: Arrival, chunk: Chunk) -> None:
        end = self._end(arrival.pod_uid, arrival.at - chunk.age_ms / 1e3)
        if end is None or self.board is None:
            return
        for index, phase in enumerate(chunk.phases):
            at = end - (len(chunk.phases) - 1 - index) * WINDOW_SECONDS
            self._put(self.board, chunk, index, at)
            self._mark(self.board, at, phase)
        self._show_early(self.board)

    def take_queried(self, name: str, ends: npt.NDArray[np.float64], found: Joined) -> None:
        """Put a metric of Prometheus onto the board, as far as agents have sent the windows.

        A board's newest window stays that of the agents: otherwise their series would seem to have ended.
        """
        if self.board is None:
            return
        self._early += [
            _Early(name, end, found.ranks, found.values[:, at])
            for at, end in enumerate(ends.tolist())
            if end <= self.board.newest_seconds + MOST_EARLY_SECONDS
        ]
        self._show_early(self.board)

    def _show_early(self, on: Board) -> None:
        newest, waiting = on.newest_seconds, self._early
        self._early = [one for one in waiting if newest < one.end <= newest + MOST_EARLY_SECONDS]
        for one in waiting:
            if one.end <= newest:
                on.put(one.name, one.ranks, one.end, one.values)

    def _end(self, pod_uid: str, end: float) -> float | None:
        """Return when the chunk's last window ended; None for a pod too many.

        It ends a whole number of windows after the pod's last chunk: else the time on the way would now skip a window
        of the board and now fill it twice.
        """
        known = self._ends.get(pod_uid)
        if known is None and len(self._ends) >= MOST_PODS:
            return None
        if known is not None:
            end = known + round((end - known) / WINDOW_SECONDS) * WINDOW_SECONDS
        self._ends[pod_uid] = end
        return end

    def _put(self, onto: Board, chunk: Chunk, index: int, at: float) -> None:
        for row, rank in enumerate(chunk.ranks):
            columns = np.flatnonzero(chunk.known[row, :, index])
            values = {
                _name(chunk.metrics[column], rank): tuple(map(float, chunk.values[row, column, index]))
                for column in columns
            }
            if values:
                onto.add(self._rank(chunk, rank), at, values)  # type: ignore[arg-type]

    def _rank(self, chunk: Chunk, rank: int) -> int:
        """Return the rank for which a series counts: of the container's, the first rank of the pod."""
        if rank != CONTAINER:
            return rank
        return min((each for each in chunk.ranks if each != CONTAINER), default=-1)

    def _mark(self, onto: Board, at: float, phase: Phase) -> None:
        """Mark the window as training where no pod says otherwise: what one rank waits for, the others wait for too."""
        slot = math.ceil(at / WINDOW_SECONDS) - 1
        if phase is not Phase.TRAINING and slot not in self._interrupted:
            self._interrupted = {each for each in self._interrupted if each > slot - onto.windows} | {slot}
        trains = phase is Phase.TRAINING and slot not in self._interrupted
        kind = board.Phase.TRAINING if trains else board.Phase.OTHER
        onto.set_phase(slot * WINDOW_SECONDS, (slot + 1) * WINDOW_SECONDS, kind)


class Jobs:
    """All jobs. ``most_bytes``: of all boards together; ``cpu``: CPU seconds of the calling thread."""

    def __init__(self, most_bytes: int, cpu: Callable[[], float]) -> None:
        self.figures = Figures()
        self._most_bytes = most_bytes
        # One job leaves room for others: it gets a shorter history instead of none.
        self._most_values = min(board.MOST_VALUES, int(BOARD_SHARE * most_bytes) // 4)
        self._cpu = cpu
        self._jobs: dict[str, _Job] = {}
        self._given_up: dict[str, float] = {}  # until when, by job uid
        self._waiting: list[str] = []  # uids of jobs whose look is due, longest first
        self._library = Library()
        self._taught_at = math.inf
        self._credit = BUDGET_SECONDS
        self._looked_at = -math.inf

    @property
    def byte_size(self) -> int:
        """Return the memory of all boards, in bytes."""
        return sum(job.byte_size for job in self._jobs.values())

    def take(self, arrival: Arrival) -> None:
        """Put a chunk onto its job's board, if it is one and the job is within its bounds."""
        self.figures.chunks += 1
        uid = arrival.job_uid
        if self._given_up.get(uid, -math.inf) > arrival.at:
            self.figures.unwanted += 1
            return
        try:
            chunk = decode_chunk(arrival.payload)
        except SeriesFormatError as error:
            self.figures.malformed += 1
            log.debug("not a chunk", job=arrival.job, namespace=arrival.namespace, error=str(error))
            return
        job = self._job(arrival, chunk.generation)
        if job is None:
            self.figures.unwanted += 1
            return
        before = job.byte_size
        job.take(arrival, chunk)
        if job.board is not None:
            self.figures.refused += job.board.refused
            job.board.refused = 0
        if job.byte_size > before:
            self._make_room(arrival.at)

    def pods(self) -> dict[str, Known]:
        """Return the pods whose series have arrived, by their uid."""
        return {uid: pod for job in self._jobs.values() for uid, pod in job.pods.items()}

    def take_queried(self, name: str, ends: npt.NDArray[np.float64], found: Mapping[str, Joined]) -> None:
        """Take what a query of Prometheus says of jobs, by their uid; ``ends`` [window] on the service's clock."""
        for uid, each in found.items():
            job = self._jobs.get(uid)
            if job is None:
                continue
            before = job.byte_size
            job.take_queried(name, ends, each)
            if job.byte_size > before:
                self._make_room(float(ends[-1]))

    def look(self, now: float) -> bool:
        """Look at the jobs that are due, as far as the budget goes. Return whether there is something new to tell."""
        if now - self._looked_at >= LOOK_SECONDS:
            self._credit = min(BUDGET_SECONDS, self._credit + BUDGET_SECONDS)
            self._looked_at = now
            self._forget(now)
            if now - self._taught_at > LESSON_HOLDS_SECONDS:
                self._unlearn()
            self.figures.postponed += len(self._waiting)
            waiting = set(self._waiting)
            self._waiting += [uid for uid in self._jobs if uid not in waiting]
        looked = False
        # A job that needs more than a whole budget is looked at all the same, and the next turns pay for it.
        while self._waiting and self._credit > 0:
            job = self._jobs.get(self._waiting.pop(0))
            if job is not None and job.board is not None:
                self._look_at(job, job.board, now)
                looked = True
        self.figures.jobs, self.figures.bytes = len(self._jobs), self.byte_size
        return looked

    def _look_at(self, job: _Job, on: Board, now: float) -> None:
        began = self._cpu()
        try:
            job.found, job.state = judge.look(on, job.state, now, job.limits)
        except Exception:
            self.figures.failed += 1
            job.found, job.state = [], judge.State()
            log.exception("a look failed", job=job.name, namespace=job.namespace)
        job.found_at = now
        if job.kind:
            self._learn_from(job, on, now)
        spent = self._cpu() - began
        self._credit -= spent
        self.figures.looks += 1
        self.figures.look_seconds += spent

    def _learn_from(self, job: _Job, on: Board, now: float) -> None:
        """Note what a look at a job shows, for its kind."""
        try:
            early = np.count_nonzero(on.training()) < LONG_HISTORY
            job.probation.judged(now, bool(early), job.found)
            if job.probation.troubled or now - job.measured_at < MEASURE_SECONDS:
                return
            began, job.measured_at = self._cpu(), now
            job.probation.measure(now, *reaches(on))
            if self._cpu() - began > MOST_MEASURE_SECONDS:
                job.measured_at = math.inf
        except Exception:
            # The verdicts of this look stand: learning must cost none of them.
            job.measured_at = math.inf
            self.figures.failed += 1
            log.exception("a job teaches nothing", job=job.name, namespace=job.namespace)

    def lesson(self, lesson: Lesson, now: float) -> Learned:
        """Take what the operator knows of the jobs and what was learned before; return what is to be stored.

        A job of which no lesson speaks is judged by the limits that it has, and teaches nothing meanwhile. After
        ``LESSON_HOLDS_SECONDS`` without any lesson all jobs are judged by what is shipped.
        """
        self._taught_at = now
        self._library.take(lesson.models)
        for known in lesson.jobs:
            self._library.used(known.kind, lesson.day)
            job = self._jobs.get(known.uid)
            if job is None or job.generation != known.generation:
                continue
            if job.kind:
                job.probation.report(now, known.quiet)
                self._library.learn(known.kind, job.uid, job.probation, lesson.day)
            job.kind = known.kind
        for job in self._jobs.values():
            job.limits = self._library.limits(job.kind) if job.kind else judge.NOTHING_LEARNED
        self.figures.lessons += 1
        self.figures.kinds, self.figures.damaged_kinds = self._library.count, self._library.damaged
        return Learned(models=self._library.changed())

    def _unlearn(self) -> None:
        """Judge all jobs by what is shipped: learning is off, or no operator leads."""
        for job in self._jobs.values():
            job.kind, job.limits = "", judge.NOTHING_LEARNED

    def answer(self, now: float) -> wire.Answer:
        """Return the verdicts on all jobs of which there are any."""
        found = (_answered(job, now) for job in self._jobs.values() if job.found)
        return wire.Answer(jobs=list(found)[: wire.MAX_JOBS])

    def board(self, uid: str) -> Board | None:
        """Return the board of a job; None of a job that has none."""
        job = self._jobs.get(uid)
        return None if job is None else job.board

    def overview(self, uid: str, seconds: float, now: float) -> Overview | None:
        """Return what the newest ``seconds`` of a job's series show; None of a job that has no board.

        Looks do not pay for its CPU time: a user who asks without end would use up what all jobs' looks may take. The
        operator, the only client, bounds it by the pause after each question.
        """
        job = self._jobs.get(uid)
        if job is None or job.board is None:
            return None
        began = self._cpu()
        standing: dict[str, dict[int, Usual]] = {}
        for (rank, metric), one in job.state.standing.items():
            standing.setdefault(metric, {})[rank] = one.usual
        rows = list(overviews.of_verdicts(_foremost(job.found), max(0.0, now - job.found_at)))
        found = overviews.overview(
            job.board,
            job.generation,
            rows,
            standing,
            seconds,
            lambda: self._cpu() - began < OVERVIEW_SECONDS,
            job.limits,
        )
        self.figures.overviews += 1
        self.figures.look_seconds += self._cpu() - began
        return found

    # -- bounds ------------------------------------------------------------------------------------------------------

    def _job(self, arrival: Arrival, generation: int) -> _Job | None:
        """Return the job to which a chunk belongs; None for a chunk of an earlier generation."""
        job = self._jobs.get(arrival.job_uid)
        if job is not None and generation < job.generation:
            return None
        if job is None or generation > job.generation:
            job = self._jobs[arrival.job_uid] = _Job(arrival, generation, self._most_values)
        if len(self._jobs) > MOST_JOBS:
            del self._jobs[min(self._jobs.values(), key=lambda each: each.heard_at).uid]
        return job

    def _make_room(self, now: float) -> None:
        """Give up the largest boards until all others have room."""
        while self._jobs and self.byte_size > self._most_bytes:
            job = max(self._jobs.values(), key=lambda each: each.byte_size)
            del self._jobs[job.uid]
            self._given_up[job.uid] = now + GIVEN_UP_SECONDS
            self.figures.given_up += 1
            log.warning(
                "no room for a job's series: raise anomalies.resources.limits.memory",
                job=job.name,
                namespace=job.namespace,
                bytes=job.byte_size,
                room=self._most_bytes,
            )

    def _forget(self, now: float) -> None:
        """Forget jobs that send nothing any more, and what was remembered of them."""
        gone = [job.uid for job in self._jobs.values() if now - job.heard_at > FORGOTTEN_SECONDS]
        for uid in gone:
            del self._jobs[uid]
        self._given_up = {uid: until for uid, until in self._given_up.items() if until > now}
        for job in list(self._jobs.values()):
            before = job.byte_size
            job.settle(now)
            # After each of them: large boards that are made in one look must not all be there at a time.
            if job.byte_size > before:
                self._make_room(now)


def _name(metric: str, rank: int) -> str:
    """Return how the board calls a metric: what ranks and their container both have must not be mixed."""
    return f"{metric}:container" if rank == CONTAINER and metric in _OF_RANKS_TOO else metric


def _answered(job: _Job, now: float) -> wire.JobVerdicts:
    return wire.JobVerdicts(
        uid=job.uid,
        namespace=job.namespace,
        name=job.name,
        generation=job.generation,
        verdicts=list(_wired(_foremost(job.found), max(0.0, now - job.found_at))),
    )


def _foremost(found: Sequence[judge.Verdict]) -> list[judge.Verdict]:
    """Return as many verdicts as an answer takes, in their order: those of the whole job, and the highest scores."""

    def place(index: int) -> tuple[bool, float]:
        return found[index].rank is not None, -max(found[index].peers_score, found[index].own_score)

    return [found[index] for index in sorted(sorted(range(len(found)), key=place)[: wire.MAX_VERDICTS])]


def _wired(several: Sequence[judge.Verdict], age: float) -> Iterator[wire.Verdict]:
    for found in several:
        yield wire.Verdict(
            kind=found.kind.value,
            rank=wire.OF_THE_JOB if found.rank is None else found.rank,
            metric=found.metric[: wire.MAX_METRIC],
            lasted=round(max(0.0, found.since_seconds_ago + age)),
            value=_finite(found.value),
            peers=_finite(found.peers),
            own=_finite(found.own),
            peers_score=_finite(found.peers_score) or 0.0,
            own_score=_finite(found.own_score) or 0.0,
            # A person who reads the verdict is to know that the shipped limits would not have raised it.
            detectors=[*found.detectors, *(["learned-limits"] if found.learned_alone else [])][:8],
            also=[name[: wire.MAX_METRIC] for name in found.also[:8]],
        )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
