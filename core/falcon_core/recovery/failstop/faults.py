"""List the faults in one observation, with severity and cause. No repair is decided here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set

import msgspec

from falcon_core.errors.judge import Judge
from falcon_core.errors.last_words import Explanation, LastWords
from falcon_core.errors.nccl import result_words
from falcon_core.errors.subjects import Subject
from falcon_core.errors.table import ErrorClass
from falcon_core.errors.taxonomy import EXITED_ABNORMALLY, Exit
from falcon_core.model import Cause, Severity
from falcon_core.recovery.failstop.first_cause import (
    Failure,
    Proof,
    awaited_ranks,
    failed_alike,
    first_failure,
    with_named,
)
from falcon_core.recovery.failstop.output_evidence import has_ended, printed_at, process_end, raised, words
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
_LEAVES = msgspec.structs.replace(_STAYS, text="raised an uncaught error")
_LINGERS = msgspec.structs.replace(
    _STAYS, consequence=False, text="ended its program while other ranks trained, and its process does not end"
)
replace = msgspec.structs.replace
CHILD_FAILED = "ChildFailed"  # class of what a launcher says of the processes below it
EARLY_END = "EarlyEnd"  # Fault.error of a rank that ended well while others trained


def start_fault(members: Sequence[MemberSeen]) -> Fault | None:
    """Return the fault of the first launcher that cannot start the command at all; None where there is none."""
    for member in members:
        if member.launcher.start_error:
            return Fault(
                severity=EXITED_ABNORMALLY,
                cause=Cause.PROCESS_FAILED,
                text=f"could not be started: {member.launcher.start_error}",
                replica=member.replica,
                pod_name=member.pod_name,
                node=member.node,
            )
    return None


def rank_fault(look: Look, before: float | None = None) -> Fault | None:
    """Return the rank's failure that came first (``first_cause``); None where no rank failed.

    ``before`` (unix seconds): later ends are left out, because the operator stopped those processes itself. A fault of
    hardware counts all the same: no order to stop makes one. Where Falcon may act, a rank counts as failed, too, when
    an exception has ended its program and its process has yet to end.
    """
    over = [rank for rank in look.obs.ranks if rank.process == "Ended" or rank.uncaught_at is not None]
    ends = [(rank, end) for rank in over if (end := _end(rank, look.obs.now, uncaught=look.policy.enforce))]
    if not ends:
        return None
    costly = _nodes_by_class(look)
    failures = [
        failure
        for rank, end in ends
        for failure in [_failure(rank, end, look, costly)]
        if before is None or failure.proof is Proof.HARDWARE or _is_before(rank, before)
    ]
    if not failures:
        return None
    return _first(failures + _early_ends(look.obs), look)


def _is_before(rank: RankSeen, moment: float) -> bool:
    failed_at = _failed_at(rank)
    return failed_at is not None and failed_at <= moment


def _first(failures: Sequence[Failure], look: Look) -> Fault | None:
    """Return the first of several failures; of no rank where all ranks of several nodes failed alike."""
    # A healthy job is asked at each look, and who waited for whom takes every communicator of the job to find out.
    if not failures:
        return None
    awaited = with_named(awaited_ranks(look, {failure.rank for failure in failures}), failures)
    first = first_failure(failures, awaited)
    if first is None:
        return None
    others = {failure.rank for failure in failures}
    silent = [rank for rank in look.obs.ranks if rank.rank not in others]
    if first.proof is Proof.CONSEQUENCE and len(silent) == 1 and len(failures) > 1:
        return _missing(silent[0], first.fault, look.obs)
    if silent or not failed_alike(failures, awaited):
        return first.fault
    # Without a first rank there is no node to blame.
    what = "lost a peer" if first.proof is Proof.CONSEQUENCE else "failed alike"
    text = f"all {len(failures)} ranks {what}: {first.fault.text}"
    return replace(first.fault, rank=None, node="", severity=EXITED_ABNORMALLY, text=text)


def _missing(rank: RankSeen, said: Fault, obs: Observation) -> Fault:
    """Return the fault of the only rank that has not failed, where all others say that they have lost a peer."""
    member = obs.members[rank.replica]
    return replace(
        said,
        text=f"its peers lost it, and it has not reported an end (rank {said.rank} {said.text})",
        replica=rank.replica,
        pod_name=member.pod_name,
        node=member.node,
        rank=rank.rank,
    )


def is_leaving(obs: Observation, fault: Fault) -> bool:
    """Check whether the fault's rank has raised an uncaught error, and its process has yet to end."""
    return any(
        rank.rank == fault.rank and rank.process == "Running" and rank.uncaught_at is not None for rank in obs.ranks
    )


def raised_fault(look: Look) -> Fault | None:
    """Return the failure that came first (``first_cause``) of the ranks that raised an error and do not end.

    None where there is none, or nothing is to be done about processes that live.
    """
    if not look.policy.enforce:
        return None
    ranks = raised(look.obs, look.policy.judge)
    costly = _nodes_by_class(look) if ranks else {}
    failures = [
        _failure(rank, _LINGERS if has_ended(rank) and not rank.printed else _STAYS, look, costly) for rank in ranks
    ]
    return _first(failures, look)


def _end(rank: RankSeen, now: float, *, uncaught: bool) -> Exit | None:
    """Return the failure of a rank; None where it has not failed."""
    if rank.process == "Ended":
        return process_end(rank)
    if not uncaught or rank.process != "Running" or rank.uncaught_at is None:
        return None
    # A program that has raised needs a moment to end. One that has not ended by then may never do so by itself.
    return _LEAVES if now - rank.uncaught_at < RAISED_SECONDS else _STAYS


def _failed_at(rank: RankSeen) -> float | None:
    """Return when a rank has failed (unix seconds): a process ends some time after an exception has ended its program.

    None where that is not known.
    """
    if rank.uncaught_at is not None:
        return rank.uncaught_at
    return rank.ended_at if rank.process == "Ended" else printed_at(rank)


def _failure(rank: RankSeen, end: Exit, look: Look, costly: Mapping[str, Set[str]]) -> Failure:
    """Return a rank's failure, by its end and by the words that explain it. ``costly``: of ``_nodes_by_class``."""
    obs, judge = look.obs, look.policy.judge
    said = words(rank, judge)
    kind = judge.get(said.error_class)
    # A process that was killed had no time to explain it. But its words may hold a cause that it had before.
    if end.cause not in (Cause.PROCESS_FAILED, Cause.PROCESS_CRASHED) and not _explains_a_kill(end, kind):
        kind = None
    own = own_error(said, kind)
    told_of = _other_process(said.about, rank, obs)
    # What a driver or a peer repeats is the other process's error, as far as it is known which process that is.
    blamed = _blamed(told_of, obs) if kind is not None and not kind.consequence else None
    hearsay = told_of is not None and blamed is None
    member = obs.members[rank.replica if blamed is None else blamed[0]]
    blames_node = kind is not None and not hearsay and len(costly.get(kind.name, ())) == 1
    fault = Fault(
        severity=Severity.SEV1 if blames_node else end.severity,
        cause=end.cause,
        text=_text(end, said, obs.members[rank.replica], quoted=kind is not None),
        replica=member.replica,
        pod_name=member.pod_name,
        node=member.node,
        rank=rank.rank if blamed is None else blamed[1],
        symptom=end.consequence and not own and (kind is None or kind.consequence or kind.vague),
        consequence=end.consequence and said.consequence,
        error=own if end.cause is Cause.PROCESS_FAILED else "",
        error_class=kind.name if kind is not None else "",
        hearsay=hearsay,
        witness=f"rank {rank.rank} says so of it" if blamed is not None else "",
        signs=_signs(rank, judge),
        ended_at=_failed_at(rank),
    )
    named = told_of.rank if told_of is not None else None
    return Failure(rank=rank.rank, fault=fault, proof=_proof(fault, end, kind, said), named=named)


def _other_process(about: Subject | None, rank: RankSeen, obs: Observation) -> Subject | None:
    """Return the process that a rank's words are about; None where that may be the rank itself, or its own pod's.

    A launcher's mark may give the number of the rank in its pod. An address that is no pod's of the job is taken for
    another host's.
    """
    if about is None or not (about.address or about.rank is not None):
        return None
    if about.rank is not None:
        per_pod = max(1, len(obs.ranks) // max(1, len(obs.members)))
        return None if about.rank in (rank.rank, rank.rank % per_pod) else about
    member = _member_at(about.address, obs)
    return None if member is not None and member.replica == rank.replica else about


def _blamed(about: Subject | None, obs: Observation) -> tuple[int, int | None] | None:
    """Return replica and rank of the process that words blame; the rank is None if its pod has several."""
    if about is None:
        return None
    if about.rank is not None:
        replica = obs.replica_of.get(about.rank)
        return None if replica is None else (replica, about.rank)
    member = _member_at(about.address, obs)
    if member is None:
        return None
    ranks = obs.ranks_of.get(member.replica, [])
    return member.replica, ranks[0] if len(ranks) == 1 else None


def _member_at(address: str, obs: Observation) -> MemberSeen | None:
    """Return the member with this address, or on the host of this name; None where no single one is known."""
    return obs.hosts.get(address.partition(".")[0] if not address[:1].isdigit() else address)


def _explains_a_kill(end: Exit, kind: ErrorClass | None) -> bool:
    """Check whether a rank that a signal ended had reported a cause of its own before."""
    return end.cause is Cause.PROCESS_KILLED and kind is not None and not (kind.consequence or kind.vague)


def _proof(fault: Fault, end: Exit, kind: ErrorClass | None, said: LastWords) -> Proof:
    """Return what a rank's end proves about its cause."""
    if said.explains is Explanation.FORM or fault.error_class == CHILD_FAILED:
        return Proof.ASKED if end.asked else Proof.OPEN
    if fault.consequence:
        return Proof.CONSEQUENCE
    # Words about a process that is not known say nothing of the rank that prints them.
    if fault.hearsay:
        return Proof.OPEN
    if kind is not None and kind.costs_node:
        return Proof.HARDWARE
    # A signal leaves no words: whether the end was asked for is all that is known.
    if end.cause is Cause.PROCESS_KILLED and kind is None:
        return Proof.ASKED if end.asked else Proof.KILLED
    if not fault.symptom:
        return Proof.CAUSE
    return Proof.RAISED if said.explains is Explanation.RAISED else Proof.OPEN


def _early_ends(obs: Observation) -> list[Failure]:
    """Return the good end of each rank that is done while others have failed."""
    return [
        Failure(
            rank=rank.rank,
            proof=Proof.EARLY,
            fault=Fault(
                severity=EXITED_ABNORMALLY,
                cause=Cause.PROCESS_FAILED,
                text="ended with exit code 0 while other ranks trained",
                replica=rank.replica,
                pod_name=obs.members[rank.replica].pod_name,
                node=obs.members[rank.replica].node,
                rank=rank.rank,
                error=EARLY_END,
                ended_at=rank.ended_at,
            ),
        )
        for rank in obs.ranks
        if rank.process == "Ended" and rank.exit_code == 0 and rank.ended_at is not None
    ]


def _signs(rank: RankSeen, judge: Judge) -> str:
    """Return the warnings of the rank's communication library before its failure; empty for none."""
    sent = rank.sent
    calls = "a set-up call" if sent.retries == 1 else f"set-up calls {sent.retries} times"
    retried = f"rank {rank.rank} had tried {calls} again in place" if sent.retries else ""
    failed = f"NCCL had reported to rank {rank.rank}: {result_words(sent.comm_error, judge)}" if sent.comm_error else ""
    return "; ".join(part for part in (retried, failed) if part)


def own_error(said: LastWords, kind: ErrorClass | None) -> str:
    """Name the error of the program's own that the next start raises as well; empty for none."""
    return said.error or (kind.name if kind is not None and kind.permanent else "")


def _nodes_by_class(look: Look) -> Mapping[str, Set[str]]:
    """Return the nodes that are blamed for each class of errors which costs a node, beyond what a restart repairs.

    An error that ranks of several nodes report together comes from the program, or from something that they share.
    """
    judge, found = look.policy.judge, defaultdict[str, set[str]](set)
    for rank in look.obs.ranks:
        said = words(rank, judge)
        kind = judge.get(said.error_class)
        if kind is not None and kind.costs_node:
            found[kind.name] |= {blamed_node(rank, said, look.obs)} - {""}
    return found


def blamed_node(rank: RankSeen, said: LastWords, obs: Observation) -> str:
    """Return the node of the process that a rank's words are about; "" where they speak of an unknown process."""
    told_of = _other_process(said.about, rank, obs)
    if told_of is None:
        return obs.members[rank.replica].node
    blamed = _blamed(told_of, obs)
    return "" if blamed is None else obs.members[blamed[0]].node


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
    return len(_nodes_with(obs, fault, judge)) < 2 and others_live(obs, fault)


def others_live(obs: Observation, fault: Fault) -> bool:
    """Check whether a rank on another node than the fault's has not ended, as far as its agent says."""
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
        same = own_error(said, kind) == fault.error if fault.error else said.error_class == fault.error_class
        if same and said.text:
            nodes.add(obs.members[rank.replica].node)
    return nodes


def _text(end: Exit, said: LastWords, member: MemberSeen, *, quoted: bool) -> str:
    """Return how a process ended, with its words where they explain that. ``quoted``: their class does."""
    if end.cause is Cause.OUT_OF_MEMORY:
        return end.text + _oom_kills(member)
    quoted = quoted or end.cause in (Cause.PROCESS_FAILED, Cause.PROCESS_CRASHED)
    return f"{end.text}: {said.text}" if quoted and said.text else end.text


def _oom_kills(member: MemberSeen) -> str:
    kills = member.launcher.oom_kills
    return (
        f"; its container counts {kills} such {'kill' if kills == 1 else 'kills'} in this generation" if kills else ""
    )
