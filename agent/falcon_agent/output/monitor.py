"""Read what the ranks print while they live: when the launcher has written, and each second.

Reading and judging takes at most SHARE of a core over some seconds. Text that comes faster, or is dearer to judge, is
sampled: of what is left over the newest is kept for the next look, since the end of a flood says why it ended.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

from falcon_agent.launch.output_file import OutputReader, Piece
from falcon_agent.output.error_lines import Budget, Errors, LineJudge, WholeLines
from falcon_core.anomalies.output_numbers import SHIPPED, NotFinite, Numbers
from falcon_core.errors.classify import Classifier
from falcon_core.wire.launcher.launch import OUTPUT_FILE, LaunchStatus
from falcon_core.wire.launcher.output import OutputFormatError
from falcon_core.wire.launcher.printed import RankOutput
from falcon_core.wire.reporting.anomalies import OutputMetric

SHARE: Final = 0.1
SHARE_SECONDS: Final = 5.0
QUIET_SECONDS: Final = 1.0  # a line that has not ended for so long is judged as it is
PIECE_BYTES: Final = 8192  # judged at a time: at worst a tenth of a second, text of an ordinary job 0.1 ms
KEPT_BYTES: Final = 1 << 16  # of what is left over
MOST_SECONDS: Final = 0.1  # of work in one look: the agent has a stream to serve
_STARTED: Final = ("Running", "Exited")  # states of a launcher whose processes are those of its newest generation
_log = structlog.get_logger()


class _Followed(msgspec.Struct):
    """One process's output."""

    reader: OutputReader | None  # None: refused
    judge: LineJudge
    lines: WholeLines = msgspec.field(default_factory=WholeLines)
    errors: Errors = msgspec.field(default_factory=Errors)
    numbers: Numbers = msgspec.field(default_factory=Numbers)
    read_at: float = 0.0
    sampled: bool = False  # it was logged


class Output:
    """The output of the pod's processes of the present generation."""

    def __init__(
        self,
        run_dir: Path,
        classifier: Callable[[], Classifier],
        *,
        metrics: Callable[[], Sequence[OutputMetric]] = lambda: SHIPPED,
        iterations: Callable[[], dict[int, int]] = dict,
    ) -> None:
        """Follow what the launcher writes under ``run_dir``.

        ``classifier`` and ``metrics``: by the job's rules as they are known. ``iterations``: done, by local rank.
        """
        self._run_dir = run_dir
        self._classifier = classifier
        self._metrics = metrics
        self._iterations = iterations
        self._generation = 0
        self._followed: dict[int, _Followed] = {}
        self._budget = Budget(SHARE, SHARE_SECONDS)
        self._next = 0  # the local rank whose turn it is

    def look(self, status: LaunchStatus | None, now: float) -> bool:
        """Read what is new; ``now`` in seconds of a monotonic clock. Return whether there is an error of a new kind."""
        if status is not None and status.state in _STARTED:
            self._follow(status)
        # The budget bounds the CPU time, whatever ranks print.
        self._budget.refill(now)
        news = False
        waiting = self._in_turn()
        began = ended = time.thread_time()
        while waiting and self._budget.is_left and ended - began < MOST_SECONDS:
            local_rank = waiting.pop(0)
            more, is_news = self._read(local_rank, now)
            news = news or is_news
            if more:
                waiting.append(local_rank)  # in turns: no rank's flood hides another rank's words
            before, ended = ended, time.thread_time()
            self._budget.spend(ended - before)
        # The next look begins with the rank whose turn it would have been.
        self._next = waiting[0] if waiting else 0
        self._leave_out(waiting)
        return news

    def reports(self, generation: int) -> list[RankOutput]:
        """Return the reports of a generation's output, for processes that have anything to report."""
        if generation != self._generation:
            return []
        made = [
            each.errors.report(local_rank, each.reader.unread_bytes if each.reader is not None else 0)
            for local_rank, each in self._followed.items()
        ]
        return [report for report in made if report.printed or report.unread_bytes]

    def raised(self, generation: int = 0) -> dict[int, int]:
        """Return when what a traceback raised was printed last (unix ns), by local rank.

        ``generation``: that generation's alone; 0: whichever is followed.
        """
        if generation not in (0, self._generation):
            return {}
        times = {local_rank: each.errors.raised_unix_ns for local_rank, each in self._followed.items()}
        return {local_rank: unix_ns for local_rank, unix_ns in times.items() if unix_ns}

    def not_finite(self, generation: int) -> dict[int, list[NotFinite]]:
        """Return the numbers of a generation's output that stay NaN or infinite, by local rank."""
        if generation != self._generation:
            return {}
        return {
            local_rank: standing for local_rank, each in self._followed.items() if (standing := each.numbers.standing)
        }

    def drain(self, generation: int) -> dict[int, tuple[Counter[str], dict[str, list[float]]]]:
        """Return the errors by class, and the numbers, of what was read since the last call, by local rank."""
        if generation != self._generation:
            return {}
        return {local_rank: (each.errors.drain(), each.numbers.drain()) for local_rank, each in self._followed.items()}

    def _in_turn(self) -> list[int]:
        """Return the local ranks that can be read, beginning with the rank that was next in the look before."""
        readable = sorted(local_rank for local_rank, each in self._followed.items() if each.reader is not None)
        # A rank that prints without end would else take the whole look each time.
        later = [local_rank for local_rank in readable if local_rank >= self._next]
        return later + readable[: len(readable) - len(later)]

    def _follow(self, status: LaunchStatus) -> None:
        if status.generation != self._generation:
            for each in self._followed.values():
                if each.reader is not None:
                    each.reader.close()
            self._generation, self._followed = status.generation, {}
            # Making it takes a tenth of a second and more: now, when the processes start, rather than with an error.
            self._classifier()
        for rank in status.ranks:
            if rank.local_rank not in self._followed:
                self._followed[rank.local_rank] = _Followed(self._open(rank.local_rank), LineJudge(self._classifier))

    def _open(self, local_rank: int) -> OutputReader | None:
        try:
            return OutputReader(self._run_dir / f"{OUTPUT_FILE}{local_rank}", self._generation)
        except (OSError, OutputFormatError) as error:
            _log.error("a rank's output cannot be read", local_rank=local_rank, error=str(error))
            return None

    def _read(self, local_rank: int, now: float) -> tuple[bool, bool]:
        """Read a piece of a process's output. Return whether there is more, and whether it has news."""
        followed = self._followed[local_rank]
        reader = followed.reader
        if reader is None:
            return False, False
        try:
            piece = reader.read(PIECE_BYTES)
        except (OSError, OutputFormatError) as error:
            self._refuse(local_rank, followed, str(error))
            return False, False
        if piece.data:
            followed.read_at = now
        if reader.unread_bytes and not followed.sampled:
            followed.sampled = True
            _log.warning("a rank prints more than is read: its output is sampled", local_rank=local_rank)
        return len(piece.data) == PIECE_BYTES, self._judge(local_rank, piece, now)

    def _judge(self, local_rank: int, piece: Piece, now: float) -> bool:
        followed = self._followed[local_rank]
        # Bytes are missing before this piece, so neither a line nor a traceback goes on in it.
        if not piece.follows:
            followed.lines.skip()
            followed.judge.skip()
        lines = followed.lines.feed(piece.data)
        # A last line without an end would otherwise never be judged.
        if not piece.data and now - followed.read_at >= QUIET_SECONDS:
            lines = followed.lines.flush()
        if not lines:
            return False
        # The time stands in a file that the ranks can write.
        printed_at = min(piece.unix_ns, time.time_ns())
        news = [followed.errors.add(error, printed_at) for error in followed.judge.read(lines)]
        iteration = self._iterations().get(local_rank)
        turned = followed.numbers.read(self._metrics(), lines, now, iteration)
        return any(news) or turned

    def _leave_out(self, waiting: Iterable[int]) -> None:
        for local_rank in waiting:
            followed = self._followed[local_rank]
            reader = followed.reader
            if reader is None:
                continue
            try:
                # What had no turn within the budget is skipped but for its newest part. Otherwise the backlog of a rank
                # that floods its output would grow, and its last words would be read minutes late.
                if reader.left() > KEPT_BYTES:
                    reader.skip_to(KEPT_BYTES)
            except (OSError, OutputFormatError) as error:
                self._refuse(local_rank, followed, str(error))

    def _refuse(self, local_rank: int, followed: _Followed, error: str) -> None:
        """Leave a file that is not the launcher's any more."""
        if followed.reader is not None:
            followed.reader.close()
        followed.reader = None
        _log.error("a rank's output cannot be read any more", local_rank=local_rank, error=error)
