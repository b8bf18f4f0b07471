"""List the faults in one observation, with severity and cause. No repair is decided here."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from falcon_core.errors.judge import Judge
from falcon_core.errors.last_words import LastWords
from falcon_core.errors.nccl import result_words
from falcon_core.errors.table import ErrorClass
from falcon_core.errors.taxonomy import EXITED_ABNORMALLY, Exit, classify_exit
from falcon_core.model import Cause, Component, Severity
from falcon_core.recovery.failstop.output_evidence import has_ended, printed_at, raised, words
from falcon_core.recovery.model.failure import Fault
from falcon_core.recovery.model.observation import Look, MemberSeen, Observation, RankSeen
from falcon_core.times import RAISED_SECONDS

# Of a rank that raised an error and lives: an end like exit code 1.
_STAYS = Exit(
    cause=Cause.PROCESS_FAILED,
    severity=EXITED_ABNORMALLY,
    consequence=True,
    text="raised an error and does not end",
)
_LEAVES = msgspec.structs.replace(_STAYS, text="raised an error that nobody caught")
_LINGERS = msgspec.structs.replace(
    _STAYS, consequence=False, text="ended its program while other ranks trained, and its process does not end"
)
EARLY_END = "EarlyEnd"  # Fault.error of a rank that ended well while others trained


def start_fault(members: Sequence[MemberSeen]) -> Fault | None:
    """Return the fault of the first launcher that cannot start the command at all; None where there is none."""
    for member in members:
        if member.start_error:
            return Fault(
                severity=EXITED_ABNORMALLY,
                cause=Cause.PROCESS_FAILED,
                component=Component.PROCESS,
                text=f"could not be started: {member.start_error}",
                replica=member.replica,
                pod_name=member.pod_name,
                node=member.node,
            )
    return None


def rank_fault(obs: Observation, judge: Judge, before: float | None = None, *, uncaught: bool = False) -> Fault | None:
    """Return the rank's failure that came first, by its nature and then by its time; None where no rank failed.

    ``before`` (unix seconds): later ends are left out, because the operator stopped those processes itself.
    ``uncaught``: a rank counts as failed, too, when nobody has caught an exception and its process has yet to end.
    A process that was killed or crashed, or whose program raised an error of its own, comes before processes that ended
    because a peer had left their collective, whatever the clocks of their nodes say. Where all say that a peer is gone,
    a rank that has ended well is that peer.
    """
    faults = []
    for rank in obs.ranks:
        end = _end(rank, obs.now, uncaught=uncaught)
        failed_at = _failed_at(rank)
        if end is None or (before is not None and (failed_at is None or failed_at > before)):
            continue
        faults.append(_process_fault(rank, end, obs, judge))
    first = min(faults, key=precedence, default=None)
    return (_early_end(obs) or first) if first is not None and first.consequence else first


def is_leaving(obs: Observation, fault: Fault) -> bool:
    """Check whether the fault's rank has raised an uncaught error, and its process has yet to end."""
    return any(
        rank.rank == fault.rank and rank.process == "Running" and rank.uncaught_at is not None for rank in obs.ranks
    )


def raised_fault(look: Look) -> Fault | None:
    """Return the failure of the rank that raised an error first, by its nature and then by its time, and does not end.

    None where there is none, or nothing is to be done about processes that live.
    """
    if not look.policy.enforce:
        return None
    faults = [
        _process_fault(rank, _LINGERS if has_ended(rank) and not rank.printed else _STAYS, look.obs, look.policy.judge)
        for rank in raised(look.obs, look.policy.judge)
    ]
    return min(faults, key=precedence, default=None)


def _end(rank: RankSeen, now: float, *, uncaught: bool) -> Exit | None:
    """Return the failure of a rank; None where it has not failed."""
    if rank.process == "Ended":
        return classify_exit(exit_code=rank.exit_code, signal=rank.signal, oom_killed=rank.oom_killed)
    if not uncaught or rank.process != "Running" or rank.uncaught_at is None:
        return None
    return _LEAVES if now - rank.uncaught_at < RAISED_SECONDS else _STAYS


def _failed_at(rank: RankSeen) -> float | None:
    """Return when a rank has failed (unix seconds): a process ends some time after an exception has ended its program.

    None where that is not known.
    """
    if rank.uncaught_at is not None:
        return rank.uncaught_at
    return rank.ended_at if rank.process == "Ended" else printed_at(rank)


def _process_fault(rank: RankSeen, end: Exit, obs: Observation, judge: Judge) -> Fault:
    said = words(rank, judge)
    understood = end.cause in (Cause.PROCESS_FAILED, Cause.PROCESS_CRASHED)
    kind = judge.get(said.error_class) if understood else None
    own_error = _own_error(said, kind)
    member = obs.members[rank.replica]
    return Fault(
        severity=Severity.SEV1 if kind is not None and _points_at_node(kind, obs, judge) else end.severity,
        cause=end.cause,
        component=Component.PROCESS,
        text=_text(end, said, member),
        replica=rank.replica,
        pod_name=member.pod_name,
        node=member.node,
        rank=rank.rank,
        symptom=end.consequence and not own_error and (kind is None or kind.consequence or kind.vague),
        consequence=end.consequence and said.consequence,
        error=own_error if end.cause is Cause.PROCESS_FAILED else "",
        error_class=kind.name if kind is not None else "",
        signs=_signs(rank, judge),
        ended_at=_failed_at(rank),
    )


def _early_end(obs: Observation) -> Fault | None:
    """Return the first good end of a rank, where the others have failed because it is gone; None without any."""
    ended = [(rank.ended_at, rank) for rank in obs.ranks if rank.process == "Ended" and rank.exit_code == 0]
    timed = [(at, rank) for at, rank in ended if at is not None]
    if not timed:
        return None
    _, rank = min(timed, key=lambda end: end[0])
    return Fault(
        severity=EXITED_ABNORMALLY,
        cause=Cause.PROCESS_FAILED,
        component=Component.PROCESS,
        text="ended with exit code 0 while other ranks trained",
        replica=rank.replica,
        pod_name=obs.members[rank.replica].pod_name,
        node=obs.members[rank.replica].node,
        rank=rank.rank,
        error=EARLY_END,
        ended_at=rank.ended_at,
    )


def _signs(rank: RankSeen, judge: Judge) -> str:
    """Return the warnings of the rank's communication library before its failure; empty for none."""
    sent = rank.sent
    calls = "a set-up call" if sent.retries == 1 else f"set-up calls {sent.retries} times"
    retried = f"rank {rank.rank} had tried {calls} again in place" if sent.retries else ""
    failed = f"NCCL had told rank {rank.rank} {result_words(sent.comm_error, judge)}" if sent.comm_error else ""
    return "; ".join(part for part in (retried, failed) if part)


def _own_error(said: LastWords, kind: ErrorClass | None) -> str:
    """Name the error of the program's own that the next start raises as well; empty for none."""
    return said.error or (kind.name if kind is not None and kind.permanent else "")


def _points_at_node(kind: ErrorClass, obs: Observation, judge: Judge) -> bool:
    """Check whether the error's class blames the rank's own node, beyond what a restart repairs.

    What ranks of several nodes say together is the program's word, or that of something that they share.
    """
    if not kind.costs_node:
        return False
    said = {obs.members[rank.replica].node for rank in obs.ranks if words(rank, judge).error_class == kind.name}
    return len(said) == 1


def precedence(fault: Fault) -> tuple[bool, bool, float]:
    """Return the sort key of the failures of ranks: the first cause before its consequences, then by time."""
    return fault.symptom, fault.consequence, fault.ended_at or float("inf")


def no_restart_mends(obs: Observation, fault: Fault, before: Sequence[tuple[str, str]], judge: Judge) -> bool:
    """Check whether the program fails so wherever it starts: with an error of its own, before its first iteration.

    ``before``: node and error of earlier failures. The same error on one node alone may be that node's: a broken mount,
    or an image that was pulled in part.
    """
    if not _fails_at_its_start(obs, fault):
        return False
    nodes = {node for node, error in before if error == fault.error} | _nodes_with(obs, fault, judge)
    return len(nodes) > 1 or len({member.node for member in obs.members}) == 1


def others_may_follow(obs: Observation, fault: Fault, judge: Judge) -> bool:
    """Check whether a program failed at its start on one node, while other nodes have yet to come as far.

    An image without a driver looks like a lost GPU, until all nodes have said so.
    """
    if not (_fails_at_its_start(obs, fault) or (fault.error_class and not obs.iterations)):
        return False
    if len(_nodes_with(obs, fault, judge)) > 1:
        return False
    return any(
        rank.process != "Ended" and member.node != fault.node and member.alive is not False
        for rank in obs.ranks
        for member in [obs.members[rank.replica]]
    )


def _fails_at_its_start(obs: Observation, fault: Fault) -> bool:
    return fault.error not in ("", EARLY_END) and not obs.iterations


def _nodes_with(obs: Observation, fault: Fault, judge: Judge) -> set[str]:
    """Return the nodes on which a rank has ended with the fault's error, or its class; the fault's own among them."""
    nodes = {fault.node}
    for rank in obs.ranks:
        said = words(rank, judge) if rank.process == "Ended" else LastWords()
        kind = judge.get(said.error_class)
        same = _own_error(said, kind) == fault.error if fault.error else said.error_class == fault.error_class
        if same and said.text:
            nodes.add(obs.members[rank.replica].node)
    return nodes


def _text(end: Exit, said: LastWords, member: MemberSeen) -> str:
    if end.cause is Cause.OUT_OF_MEMORY:
        return end.text + _oom_kills(member)
    quoted = end.cause in (Cause.PROCESS_FAILED, Cause.PROCESS_CRASHED) and said.text
    return f"{end.text}: {said.text}" if quoted else end.text


def _oom_kills(member: MemberSeen) -> str:
    kills = member.oom_kills
    return (
        f"; its container counts {kills} such {'kill' if kills == 1 else 'kills'} in this generation" if kills else ""
    )
