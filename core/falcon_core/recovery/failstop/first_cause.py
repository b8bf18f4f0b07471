"""Choose, of the ranks that failed together, the rank that failed first.

Clocks of nodes differ, and reports arrive in any order. So the order of evidence is:

1. *What the end proves.* A fault of hardware comes before any other end. A cause of a rank's own (a class of error, the
   kernel's out-of-memory killer, a crash) comes before an end that proves nothing (an exit code, an exception of no
   class). That comes before the consequence of a peer's end. A rank that was killed may be the first, or a launcher may
   have killed it after another rank's failure: so it is compared with causes and with open ends.
2. *Who waited for whom.* A rank that has begun a collective waits for the members that have not begun it. Among ends
   of equal proof, a rank that waited for another failed rank is not the first.
3. *The clock* decides between the ranks that are left. Only a failure that came long before all others needs no more
   than the clock: what came later cannot be its cause.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import IntEnum

import msgspec

from falcon_core.recovery.diagnosis.communicator_progress import communicators, sends_awaited
from falcon_core.recovery.model.failure import Fault
from falcon_core.recovery.model.observation import Look


class Proof(IntEnum):
    """What a rank's end proves about its cause, the strongest first."""

    HARDWARE = 0  # its words report a fault of a device or of the node: no peer's end makes such a fault
    CAUSE = 1  # the rank failed for a reason of its own
    KILLED = 2  # it was killed: by an administrator, or by a launcher after another rank's failure
    RAISED = 3  # an exception of no class ended it
    OPEN = 4  # the end may have any reason
    EARLY = 5  # the rank ended well while others trained: it may have left them alone
    ASKED = 6  # it was asked to end, as by a launcher after another rank's failure
    CONSEQUENCE = 7  # the rank says that a peer has gone


_OPEN_ENDS = frozenset({Proof.KILLED, Proof.RAISED, Proof.OPEN, Proof.EARLY, Proof.ASKED})
# By the strongest proof of all: the ends that are compared with each other by who waited for whom.
_COMPARED = {
    Proof.HARDWARE: frozenset({Proof.HARDWARE}),
    Proof.CAUSE: frozenset({Proof.CAUSE, Proof.KILLED}),
    **dict.fromkeys(_OPEN_ENDS, _OPEN_ENDS),
    Proof.CONSEQUENCE: frozenset({Proof.CONSEQUENCE}),
}


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that has failed, or has ended well while others trained."""

    rank: int
    fault: Fault  # of the rank, or of another one that its words blame
    proof: Proof
    named: int | None = None  # another rank of which its words speak


CLEAR_LEAD_SECONDS = 10.0  # between a failure and the next: more than clocks of nodes differ that are set at all
Awaited = Mapping[int, frozenset[int]]  # by rank, the ranks that it waited for


def awaited_ranks(look: Look, ranks: Collection[int]) -> Awaited:
    """Return for each of these ranks those of the others that it waited for; without an entry, none is known.

    A rank counts the calls that it begins in each communicator. Its count stays when its process ends. A collective
    that one member has begun more often than another waits for the other; so does a receive for its send.
    """
    named = communicators(look)
    counts: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for seen in look.obs.ranks:
        if seen.rank not in ranks:
            continue
        for comm in seen.sent.comms:
            group = named.get((seen.rank, comm.comm))
            # A communicator whose members are not known cannot show who waited for whom.
            if group is not None and comm.entered is not None:
                counts[group.name][seen.rank] = comm.entered
    found: defaultdict[int, set[int]] = defaultdict(set)
    for entered in counts.values():
        _add_waits(found, entered)
    for receiver, sender in sends_awaited(look.obs, named):
        if receiver in ranks and sender in ranks:
            found[receiver].add(sender)
    return {rank: frozenset(others) for rank, others in found.items()}


def _add_waits(found: defaultdict[int, set[int]], entered: Mapping[int, int]) -> None:
    """Add that each member waits for the members that have begun the fewest calls.

    The members in between wait for the same ranks, so that the sources of the graph are all there.
    """
    least = min(entered.values(), default=0)
    last = {rank for rank, count in entered.items() if count == least}
    for rank, count in entered.items():
        if count > least:
            found[rank] |= last


def with_named(awaited: Awaited, failures: Sequence[Failure]) -> Awaited:
    """Return who waited for whom, with the ranks that the words of failed ranks name as the peer they lost."""
    words = {failure.rank: frozenset({failure.named}) for failure in failures if failure.named is not None}
    return {rank: awaited.get(rank, frozenset()) | words.get(rank, frozenset()) for rank in {*awaited, *words}}


def first_failure(failures: Sequence[Failure], awaited: Awaited) -> Failure | None:
    """Return the failure that came first; None where there is none."""
    strongest = min((failure.proof for failure in failures), default=None)
    if strongest is None:
        return None
    # Evidence of broken hardware outweighs the order of the ends: its peers may fail before it does.
    if strongest is not Proof.HARDWARE and (clear := _clearly_first(failures, strongest)) is not None:
        return clear
    pool = [failure for failure in failures if failure.proof in _COMPARED[strongest]]
    return min(_sources(pool, failures, awaited), key=_by_proof_and_clock)


def _clearly_first(failures: Sequence[Failure], strongest: Proof) -> Failure | None:
    """Return the failure that came long before all others; None where there is none.

    A rank that says that a peer has gone is no cause, whenever it said so. A rank that ended well may simply have had
    less to do, if another one has failed for a reason of its own.
    """
    timed = sorted(failures, key=lambda failure: failure.fault.ended_at or float("inf"))
    if len(timed) < 2 or timed[0].proof is Proof.CONSEQUENCE:
        return None
    if timed[0].proof is Proof.EARLY and strongest is Proof.CAUSE:
        return None
    first, second = (failure.fault.ended_at for failure in timed[:2])
    if first is None or second is None:
        return None
    return timed[0] if second - first >= CLEAR_LEAD_SECONDS else None


def failed_alike(failures: Sequence[Failure], awaited: Awaited) -> bool:
    """Check whether several ranks of several nodes failed with one class of error, and none waited for another."""
    kinds = {(failure.proof, failure.fault.error_class, failure.fault.error) for failure in failures}
    nodes = {failure.fault.node for failure in failures}
    if len(kinds) > 1 or len(nodes) < 2 or awaited:
        return False
    [(proof, error_class, error)] = kinds
    # All were asked to end, or all lost a peer: no words of theirs could tell them apart.
    if proof in (Proof.ASKED, Proof.CONSEQUENCE):
        return True
    # Ranks may fail with one class for reasons of their own, unless the class is a cause by itself or all say the same.
    same_words = len({failure.fault.text for failure in failures}) == 1
    return bool(error_class or error) and (same_words or proof is Proof.CAUSE)


def _sources(pool: Sequence[Failure], failures: Iterable[Failure], awaited: Awaited) -> Sequence[Failure]:
    """Return those of the pool that waited for no failed rank, or else for none of the pool; all where none is left."""
    everyone = {failure.rank for failure in failures}
    own = {failure.rank for failure in pool}
    for others in (everyone, own):
        left = [failure for failure in pool if not (awaited.get(failure.rank, frozenset()) & others)]
        if left:
            return left
    return pool


def _by_proof_and_clock(failure: Failure) -> tuple[int, float]:
    return failure.proof, failure.fault.ended_at or float("inf")
