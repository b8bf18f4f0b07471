"""Derive which pods make up a job from the recovery's commands: one pure function.

The operator stores the membership before it acts and derives every effect from it. The simulator calls the same
function to place its pods. A generation is one life of the job's process group. Its number grows by one each time that
a running generation is stopped, however many commands request this at once. Times are unix seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from typing import Literal, Protocol

import msgspec

from falcon_core.recovery.model.actions import (
    Abandon,
    Command,
    GiveUp,
    Prepare,
    Recreate,
    Replace,
    Restart,
    Swap,
    Switch,
    restarts,
)

replace = msgspec.structs.replace


class _Stored(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of what the operator stores: camelCase, defaults left out."""


class Member(_Stored, frozen=True, kw_only=True):
    """The pod that holds a replica in the present generation."""

    replica: int
    pod_name: str
    pod_uid: str = ""  # "" until the pod exists
    node: str = ""  # "" until it is placed
    first_rank: int = 0
    pod_number: int | None = None  # number in the names of its pod and host; None: that of the replica

    @property
    def number(self) -> int:
        """Return the number in the names of its pod and host: the replica's own until roles are exchanged."""
        return self.replica if self.pod_number is None else self.pod_number


class Replacement(_Stored, frozen=True, kw_only=True):
    """A replica's move to another pod; claim and pod are named here before they are made."""

    replica: int
    pod_name: str
    pool: str = ""  # "": any free node
    claim_key: str = ""
    node: str = ""  # the claimed spare node, or the node that the pod has to return to
    old_pod_name: str
    old_pod_uid: str
    old_node: str
    prepared: bool  # the new pod is made while training goes on; False: the new pod is a member already
    at: float
    pod_number: int | None = None  # number in the names of the new pod and its host; None: that of the earlier pod
    joins: bool = False  # the new pod was asked for as one that joins: it joins again if the move is given up


class StandbyPod(_Stored, frozen=True, kw_only=True):
    """A pod that holds no replica and is ready to take over any; claim and pod are named here before they are made."""

    number: int  # number in the names of its pod and host; no replica has it, so that host names stay unique
    pod_name: str
    pod_uid: str = ""  # "" until the pod exists
    pool: str = ""  # "": any free node
    claim_key: str = ""
    node: str = ""  # the claimed spare node, then the pod's node
    ready: bool = False  # its launcher waits for a plan
    at: float


class Exclusion(_Stored, frozen=True, kw_only=True):
    """A node that this job does not use, and the progress of the node's test."""

    node: str
    reason: str
    at: float  # when the node was excluded
    incident: str = ""  # id of the incident that excluded it
    test: Literal["Pending", "Passed", "Failed", "Unavailable"] = "Pending"
    test_since: float = 0.0  # when the newest test was ordered; its pod's name derives from this time
    fenced: bool = False  # the node is fenced for all jobs, by a witness outside the job
    tainted: bool = False  # the fence has been seen on the node: if it is gone, another actor removed it
    node_uid: str = ""  # "" until the node has been seen; a new node of the same name is another node


class Membership(_Stored, frozen=True, kw_only=True):
    """The pods of a job, and what the operator has done about them."""

    generation: int = 0  # 0: none yet
    phase: Literal["Stop", "Run", "Finish"] = "Stop"
    since: float = 0.0  # start of the phase
    members: list[Member] = []  # pods by replica; empty while the job holds no pods
    replacements: list[Replacement] = []
    standbys: list[StandbyPod] = []
    joining: list[StandbyPod] = []  # pods that an elastic job asks for: with them it gets its replicas back
    exclusions: list[Exclusion] = []
    lost_pods: list[str] = []  # uids of pods whose node was lost with a witness: their processes count as dead
    done: list[int] = []  # replicas of which all ranks ended well by themselves in the running generation
    pods_made: int = 0  # number of pods made; the names of pods and claims derive from it
    restarts: int = 0  # generations that followed another generation
    replaced: int = 0  # number of replaced nodes

    def replacement(self, replica: int) -> Replacement | None:
        """Return the move of a replica that is under way."""
        for move in self.replacements:
            if move.replica == replica:
                return move
        return None

    @property
    def excluded_nodes(self) -> list[str]:
        """Return the names of the nodes that the job does not use."""
        return [exclusion.node for exclusion in self.exclusions]


class Names(Protocol):
    """The caller's names for what it makes.

    A name derives from the number alone, so that a caller that makes the same pod or claim twice gets it once.
    """

    @property
    def pool(self) -> str:
        """Return the warm pool from which replacements come; "" for any free node."""
        ...

    def pod(self, replica: int, number: int) -> str: ...

    def claim(self, number: int) -> str: ...


def apply_actions(membership: Membership, commands: Sequence[Command], names: Names, now: float) -> Membership:
    """Return the membership after the recovery's commands: at most one new generation, however many they are."""
    for command in commands:
        membership = _applied(membership, command, names, now)
    stops = any(map(restarts, commands))
    return _next_generation(membership, now) if stops else membership


def _applied(membership: Membership, command: Command, names: Names, now: float) -> Membership:
    match command:
        case Recreate(replica=replica, stay=stay):
            return _take_over(_move(membership, names, replica, now, prepared=False, stay=stay), replica)
        case Replace(replica=replica, reason=reason, lost=lost, incident=incident):
            uid = membership.members[replica].pod_uid
            membership = _exclude(membership, replica, reason, incident, now)
            membership = _take_over(_move(membership, names, replica, now, prepared=False), replica)
            return _count_replaced(membership, uid if lost else "")
        case Prepare(replica=replica, reason=reason, incident=incident, exclude=exclude):
            if exclude:
                membership = _exclude(membership, replica, reason, incident, now)
            return _move(membership, names, replica, now, prepared=True)
        case Switch(replica=replica, lost=lost):
            return _switch(membership, replica, lost=lost)
        case Swap(pods_of=pods_of):
            return _exchange(membership, pods_of)
        case Abandon(replica=replica):
            return _abandon(membership, replica)
        case Restart() | GiveUp():
            return membership  # every replica keeps its pod


def begin(membership: Membership, names: Names, *, replicas: int, procs: int, now: float) -> Membership:
    """Return the membership with a new pod for every replica.

    This is the first generation, or the generation after all pods were given up. Excluded nodes stay excluded.
    """
    made = membership.pods_made
    members = [
        Member(replica=replica, pod_name=names.pod(replica, made + replica + 1), first_rank=replica * procs)
        for replica in range(replicas)
    ]
    return replace(
        membership,
        generation=membership.generation + 1,
        phase="Stop",
        since=now,
        members=members,
        replacements=[],
        standbys=[],
        joining=[],
        done=[],
        pods_made=made + replicas,
    )


def release(membership: Membership) -> Membership:
    """Return the membership without any pods (suspension, or a gang that found no room)."""
    return replace(
        membership, phase="Stop", members=[], replacements=[], standbys=[], joining=[], lost_pods=[], done=[]
    )


def resize(membership: Membership, names: Names, size: int, *, procs: int, now: float) -> Membership:
    """Return the membership of ``size`` replicas, numbered from 0 without gaps.

    Members that have a node stay, in their order; pods that are ready to join follow. Where the size stays, the members
    keep their replicas, and the pods fill the empty seats. What has no seat then is asked for further (``joining``). A
    running generation is stopped, and the next one has the new size.
    """
    placed = [member for member in membership.members if member.node]
    keeps = size == len(membership.members)
    if not keeps:
        # A pod that is prepared for a replica belongs to ranks that are numbered otherwise now.
        membership = _without_prepared(membership)
    ready = [each for each in membership.joining if each.ready and each.node not in membership.excluded_nodes]
    joined = [_seat(each) for each in ready[: max(0, size - len(placed))]]
    pods = _filled(membership.members, joined) if keeps else [*placed[:size], *joined]
    members = [
        replace(pod, replica=replica, first_rank=replica * procs, pod_number=_unless_own(pod.number, replica))
        for replica, pod in enumerate(pods)
    ]
    role_of = {pod.pod_name: replica for replica, pod in enumerate(pods)}
    dropped = [member for member in membership.members if member.pod_name not in role_of]
    joining = [each for each in membership.joining if each.pod_name not in role_of]
    after = replace(membership, members=members, replacements=_moves_of(membership, role_of), joining=joining)
    for member in dropped:
        after = _ask_for(after, names, member, membership.replacement(member.replica), now)
    return _next_generation(after, now)


def _without_prepared(membership: Membership) -> Membership:
    """Give up every move whose pod is only being prepared."""
    for move in membership.replacements:
        membership = _abandon(membership, move.replica)
    return membership


def _filled(members: Sequence[Member], joined: Sequence[Member]) -> list[Member]:
    """Return the members with pods that join in the place of those that have no node, as far as they suffice."""
    waiting = iter(joined)
    return [member if member.node else next(waiting, member) for member in members]


def _moves_of(membership: Membership, role_of: Mapping[str, int]) -> list[Replacement]:
    """Return the moves of pods that have a seat still: ``role_of`` gives each pod's replica by its name."""
    member_of = {member.replica: member.pod_name for member in membership.members}
    pods = [(move, member_of[move.replica] if move.prepared else move.pod_name) for move in membership.replacements]
    return [replace(move, replica=role_of[pod]) for move, pod in pods if pod in role_of]


def _seat(pod: StandbyPod) -> Member:
    """Return the member that a pod is which joins; ``resize`` gives it its replica."""
    return Member(replica=0, pod_name=pod.pod_name, pod_uid=pod.pod_uid, node=pod.node, pod_number=pod.number)


def _ask_for(membership: Membership, names: Names, member: Member, move: Replacement | None, now: float) -> Membership:
    """Ask further for the pod of a member that has lost its seat.

    A pod that waits for any node is asked for further. Otherwise another pod is made: a pod that has a node may have
    processes of the earlier size, and a pod that is pinned waits for a single node.
    """
    if member.node or (move is not None and (move.pool or move.node)):
        return ask_again(membership, names, member.number, now)
    pod = StandbyPod(number=member.number, pod_name=member.pod_name, pod_uid=member.pod_uid, at=now)
    return replace(membership, joining=[*membership.joining, pod])


def ask_again(membership: Membership, names: Names, number: int, now: float, *, claims: bool = False) -> Membership:
    """Ask for a new pod of this number, on any node; ``claims``: on a spare of the job's pool."""
    made = membership.pods_made + 1
    pod = StandbyPod(
        number=number,
        pod_name=names.pod(number, made),
        pool=names.pool if claims else "",
        claim_key=names.claim(made) if claims and names.pool else "",
        at=now,
    )
    others = [each for each in membership.joining if each.number != number]
    return replace(membership, pods_made=made, joining=[*others, pod])


def ask_for_more(membership: Membership, names: Names, now: float) -> Membership:
    """Ask for one more pod than before, with a number that no other pod of the job has."""
    used = {member.number for member in membership.members} | {each.number for each in membership.standbys}
    used |= {each.number for each in membership.joining}
    used |= {move.pod_number for move in membership.replacements if move.pod_number is not None}
    return ask_again(membership, names, next(number for number in count() if number not in used), now)


def _next_generation(membership: Membership, now: float) -> Membership:
    """Stop the running generation and begin the next; unchanged where no generation runs."""
    if membership.phase != "Run":
        return membership  # a generation is being stopped already: its successor's number is still free to use
    return replace(
        membership,
        generation=membership.generation + 1,
        phase="Stop",
        since=now,
        done=[],
        restarts=membership.restarts + 1,
    )


def _exclude(membership: Membership, replica: int, reason: str, incident: str, now: float) -> Membership:
    node = membership.members[replica].node
    if not node or node in membership.excluded_nodes:
        return membership
    exclusion = Exclusion(node=node, reason=reason, at=now, incident=incident, test_since=now)
    return replace(membership, exclusions=[*membership.exclusions, exclusion])


def _move(
    membership: Membership, names: Names, replica: int, now: float, *, prepared: bool, stay: bool = False
) -> Membership:
    """Name the replica's new pod, and the claim of a spare for the pod; ``stay``: the pod stays on the present node.

    A standby pod that is ready becomes the new pod, or else a pod that is ready to join.
    """
    member = membership.members[replica]
    move_to = partial(
        Replacement,
        replica=replica,
        old_pod_name=member.pod_name,
        old_pod_uid=member.pod_uid,
        old_node=member.node,
        prepared=prepared,
        at=now,
    )
    # A ready standby pod has its node and its image already, so no other pod starts as soon.
    standby = None if stay else _ready_pod(membership, member)
    if standby is not None:
        move = move_to(
            pod_name=standby.pod_name,
            pod_number=standby.number,
            pool=standby.pool,
            claim_key=standby.claim_key,
            node=standby.node,
            joins=any(each is standby for each in membership.joining),
        )
        membership = replace(
            membership,
            standbys=[each for each in membership.standbys if each is not standby],
            joining=[each for each in membership.joining if each is not standby],
        )
    else:
        # Names derive from this number, so that a crash after the intent is stored makes the same pod again.
        number = membership.pods_made + 1
        pool = "" if stay else names.pool
        move = move_to(
            pod_name=names.pod(member.number, number),
            pool=pool,
            claim_key=names.claim(number) if pool else "",
            node=member.node if stay else "",
        )
        membership = replace(membership, pods_made=number)
    earlier = membership.replacement(replica)
    if earlier is not None and earlier.prepared and earlier.joins:
        membership = _given_back(membership, earlier)
    others = [other for other in membership.replacements if other.replica != replica]
    return replace(membership, replacements=[*others, move])


def _ready_pod(membership: Membership, member: Member) -> StandbyPod | None:
    """Return a pod without a replica that can take the member's place at once; None where there is none."""
    unfit = {member.node, *membership.excluded_nodes}
    pods = (*membership.standbys, *membership.joining)
    return next((each for each in pods if each.ready and each.node not in unfit), None)


def take_ready(membership: Membership, names: Names, replica: int, now: float) -> Membership:
    """Let a replica's prepared move take a pod that is ready already; unchanged where there is none."""
    if _ready_pod(membership, membership.members[replica]) is None:
        return membership
    return _move(membership, names, replica, now, prepared=True)


def _take_over(membership: Membership, replica: int) -> Membership:
    """Make the replica's named new pod its member."""
    move = membership.replacement(replica)
    assert move is not None  # named by _move, or by the Prepare before a Switch
    before = membership.members[replica]
    number = before.number if move.pod_number is None else move.pod_number
    member = replace(before, pod_name=move.pod_name, pod_uid="", node="", pod_number=_unless_own(number, replica))
    members = [member if other.replica == replica else other for other in membership.members]
    return replace(membership, members=members)


def _switch(membership: Membership, replica: int, *, lost: bool) -> Membership:
    """Make the prepared pod take the replica over."""
    uid = membership.members[replica].pod_uid
    moves = [replace(move, prepared=False) if move.replica == replica else move for move in membership.replacements]
    membership = _take_over(replace(membership, replacements=moves), replica)
    return _count_replaced(membership, uid if lost else "")


def _exchange(membership: Membership, pods_of: Sequence[int]) -> Membership:
    """Give each role the pod of another: ``pods_of``, by replica, the replica whose pod takes its role.

    A pod keeps its names; a pod that is made later in its place gets its number.
    """
    before = membership.members
    members = [
        replace(
            before[pods_of[member.replica]],
            replica=member.replica,
            first_rank=member.first_rank,
            pod_number=_unless_own(before[pods_of[member.replica]].number, member.replica),
        )
        for member in before
    ]
    # Moves that are under way belong to pods, and pods have other roles from now on.
    role_of = {of: replica for replica, of in enumerate(pods_of)}
    moves = [replace(move, replica=role_of[move.replica]) for move in membership.replacements]
    return replace(membership, members=members, replacements=moves)


def _unless_own(number: int, replica: int) -> int | None:
    return None if number == replica else number


def _count_replaced(membership: Membership, lost_pod: str) -> Membership:
    """Count a replaced node.

    ``lost_pod``: uid of a pod whose processes count as dead; "": the pod has to acknowledge that they ended.
    """
    lost_pods = [*membership.lost_pods, lost_pod] if lost_pod else membership.lost_pods
    return replace(membership, lost_pods=lost_pods, replaced=membership.replaced + 1)


def _abandon(membership: Membership, replica: int) -> Membership:
    move = membership.replacement(replica)
    if move is None or not move.prepared:
        return membership
    membership = _given_back(membership, move)
    return replace(
        membership,
        replacements=[other for other in membership.replacements if other is not move],
        exclusions=[exclusion for exclusion in membership.exclusions if exclusion.node != move.old_node],
    )


def _given_back(membership: Membership, move: Replacement) -> Membership:
    """Let the pod that a prepared move had taken stand by, or join, as before the move."""
    if move.pod_number is None:
        return membership
    pod = _standing_by(move, move.pod_number)
    if move.joins:
        return replace(membership, joining=[pod, *membership.joining])
    return replace(membership, standbys=[*membership.standbys, pod])


def _standing_by(move: Replacement, number: int) -> StandbyPod:
    """Return the pod that a given-up move would have used; it is ready again once it has been looked at."""
    return StandbyPod(
        number=number,
        pod_name=move.pod_name,
        pool=move.pool,
        claim_key=move.claim_key,
        node=move.node,
        at=move.at,
    )
