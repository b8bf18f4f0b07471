"""Read from a rank's output why it failed, and find ranks that have failed while their process still runs.

An uncaught exception does not always end a process: a running thread may keep it alive, or its communicators wait for
peers while they are closed. Such a rank counts as failed, with its own message. A printed error by itself never counts:
programs catch exceptions, log them with their traceback, and go on.
"""

from __future__ import annotations

from falcon_core.errors.judge import Judge
from falcon_core.errors.last_words import LastWords
from falcon_core.errors.taxonomy import Exit, classify_exit
from falcon_core.errors.tracebacks import exception_type
from falcon_core.model import Severity
from falcon_core.recovery.diagnosis.communicator_progress import is_ending, nobody_waits, waits
from falcon_core.recovery.model.observation import Observation, Ranks, RankSeen
from falcon_core.signals.job.stacks import PROGRAM_ENDED
from falcon_core.stats.medians import Flags
from falcon_core.times import ANSWERED_SECONDS, RAISED_SECONDS
from falcon_core.wire.launcher.printed import Printed
from falcon_core.wire.reporting.messages import MAX_DETAILED

ASKED_SECONDS = 1.0  # after the newest call that is known of a rank that printed an error
UNTRACKED_SECONDS = 60.0  # what a rank without calls has printed so long before its end may be why it ended
# A process whose main thread is in one of these has left its program, or is about to.
_TEARDOWN = ("_shutdown ", "destroy_process_group ", "_exit_function ", "_run_exitfuncs ")


def words(rank: RankSeen, judge: Judge) -> LastWords:
    """Return the words that best explain the failure of a process: its last ones, unless earlier ones explain more.

    What follows an exception (the output of threads, a flood) may be all that its last words hold.
    """
    last = judge.words(rank.last_words, rank.exit_code)
    if not rank.printed or judge.names_exit(rank.exit_code) or (_is_raised(rank.last_words) and not last.consequence):
        return last
    told = [(judge.words(printed.text), printed.raised) for printed in _before_end(rank)]
    best = min(told, key=lambda each: _weight(each[0], each[1], judge), default=None)
    if best is None or (rank.last_words and _weight(best[0], best[1], judge) >= _weight(last, False, judge)):
        return last
    return best[0]


def said_last(rank: RankSeen, judge: Judge) -> str:
    """Return the most telling error that a rank has printed since its newest call; empty where there is none."""
    told = [(judge.words(printed.text), printed.raised) for printed in _since_call(rank)]
    return min(told, key=lambda each: _weight(each[0], each[1], judge))[0].text if told else ""


def raised(obs: Observation, judge: Judge) -> list[RankSeen]:
    """Return the ranks that have failed, though their processes have not ended; empty while any rank moves.

    A rank has failed if it printed an error that ends a program, ``RAISED_SECONDS`` ago at least, has made no call
    since then, and its stack shows that it has left its program; or if its program is over while others are inside a
    collective, whatever it printed. Where no rank waits inside a call, each rank may save or evaluate by itself, unless
    others have ended well: then the program of each is over, or about to be.
    """
    running = obs.reports.take(obs.reports.fresh & obs.reports.running)
    speaking = [rank for rank in running if rank.printed or rank.sent.stack]
    may_have_failed = any(rank.printed or has_ended(rank) for rank in speaking)
    if not obs.running or not may_have_failed or not all(map(_is_still, running)):
        return []
    if len(obs.ranks) > 1 and nobody_waits(obs) and not is_ending(obs):
        return []
    # If some rank's interpreter answers, one that does not has left its program or stands still.
    interpreters_answer = any(rank.sent.stack for rank in running)
    # When training is over, all ranks clean up for a while, and none waits for another.
    too_early = any(map(waits, running))
    return [
        rank
        for rank in running
        if (has_ended(rank) and too_early) or _has_failed(rank, judge, interpreters_answer=interpreters_answer)
    ]


def process_end(rank: RankSeen) -> Exit | None:
    """Return the failure as which a rank's process ended; None where it lives, or has ended well."""
    if rank.process != "Ended":
        return None
    uncaught = rank.uncaught_at is not None
    return classify_exit(exit_code=rank.exit_code, signal=rank.signal, oom_killed=rank.oom_killed, uncaught=uncaught)


def has_ended(rank: RankSeen) -> bool:
    """Check whether a rank's program is over, though its process lives."""
    stack = rank.sent.stack
    return len(stack) == 1 and stack[0] == PROGRAM_ENDED


def may_have_raised(rank: RankSeen) -> bool:
    """Check whether a rank may be about to fail: it printed an error, and is not known to have made a call since."""
    return rank.process == "Running" and rank.alone and any(printed.raised for printed in _since_call(rank))


def asked(obs: Observation) -> list[int]:
    """Return the ranks to be asked for their detail, so that it is known at once whether all stand still.

    A large job is known to stand still when its agents say so by themselves.
    """
    if len(obs.ranks) > MAX_DETAILED:
        return []
    suspects = any(may_have_raised(rank) and rank.silent_seconds >= ASKED_SECONDS for rank in obs.ranks)
    return [rank.rank for rank in obs.ranks] if suspects else []


def _is_still(rank: RankSeen) -> bool:
    """Check whether a rank certainly makes no calls."""
    return rank.stalled or rank.quiet_seconds >= RAISED_SECONDS


def _has_failed(rank: RankSeen, judge: Judge, *, interpreters_answer: bool) -> bool:
    """Check whether a rank that stands still has failed."""
    if not rank.alone:
        return False
    stack = rank.sent.stack
    left = _has_left(stack) if stack else interpreters_answer and could_answer(rank)
    early = [printed for printed in _since_call(rank) if printed_seconds(rank, printed) >= RAISED_SECONDS]
    return any(
        (printed.raised and left) or (_points_at_hardware(printed, judge) and could_answer(rank)) for printed in early
    )


def printed_at(rank: RankSeen) -> float | None:
    """Return when a rank printed its newest error (unix seconds, the operator's clock); None where it printed none."""
    return max(printed.unix_ns for printed in rank.printed) / 1e9 + rank.clock_ahead if rank.printed else None


def printed_seconds(rank: RankSeen, printed: Printed) -> float:
    """Return the time since a silent rank printed something [s], by its node's clock."""
    if rank.sent.last_call_unix_ns is None:
        return 0.0
    return rank.silent_seconds - (printed.unix_ns - rank.sent.last_call_unix_ns) / 1e9


def could_answer(rank: RankSeen) -> bool:
    """Check whether the agent of a rank that is silent for long has had the time to ask for its stack and report it."""
    deadline_ns = rank.sent.hang_deadline_ns
    return deadline_ns is not None and rank.silent_seconds - deadline_ns / 1e9 >= ANSWERED_SECONDS


def who_could_answer(ranks: Ranks) -> Flags:
    """Check of which ranks ``could_answer`` holds: [n]."""
    return ranks.silent_seconds - ranks.deadlines_ns / 1e9 >= ANSWERED_SECONDS


def _has_left(stack: list[str]) -> bool:
    """Check whether the main thread, as its frames show it, is in no function of the program any more.

    The innermost frame comes first, whatever it is; frames after it are the program's own.
    """
    inside = len(stack) > 1 or stack[0].startswith("<module> ")
    return not inside or stack[0].startswith(_TEARDOWN)


def _points_at_hardware(printed: Printed, judge: Judge) -> bool:
    """Check whether a line reports a permanent failure of a device, a link or the node, whichever rank prints it."""
    kind = judge.get(judge.words(printed.text).error_class)
    return kind is not None and kind.blames_hardware and kind.severity is not Severity.SEV3 and not kind.transient


def _since_call(rank: RankSeen) -> list[Printed]:
    """Return the errors that a rank has printed since its newest call returned; none before its first call."""
    last_call = rank.sent.last_call_unix_ns
    return [] if last_call is None else [printed for printed in rank.printed if printed.unix_ns > last_call]


def _before_end(rank: RankSeen) -> list[Printed]:
    if rank.sent.last_call_unix_ns is not None:
        return _since_call(rank)
    ended_at = rank.ended_at if rank.ended_at is not None else rank.uncaught_at
    if ended_at is None:
        return []
    first_ns = int((ended_at - rank.clock_ahead - UNTRACKED_SECONDS) * 1e9)
    return [printed for printed in rank.printed if printed.unix_ns >= first_ns]


def _weight(words: LastWords, raised: bool, judge: Judge) -> tuple[bool, ...]:
    """Return the sort key of words: errors, own causes, known classes, raised exceptions, and the gravest first."""
    kind = judge.get(words.error_class)
    vague = kind is None or kind.vague
    is_grave = kind is not None and kind.severity is Severity.SEV1
    return kind is None and not raised, words.consequence, vague and not raised, not raised, not is_grave


def _is_raised(words: str) -> bool:
    """Check whether words are of the form "ValueError: …", as a traceback ends."""
    name = exception_type(words.partition(" (")[0]).rpartition(".")[2]
    return name[:1].isupper()
