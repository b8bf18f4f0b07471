"""Translate a snapshot into the observation that the recovery reads.

Every age is measured by one clock: the operator's own, or that of the node whose report is read. Kubelets give times by
their nodes' clocks: what rests on them has to stand a difference.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Literal

import msgspec

from falcon_core.errors.judge import platform_judge
from falcon_core.recovery import (
    NOTHING_SENT,
    LauncherSeen,
    Member,
    MemberSeen,
    Membership,
    NodeHealth,
    Observation,
    PodEnd,
    PreparedSeen,
    ProbeSeen,
    Ranks,
    RankSeen,
    Replacement,
    Spares,
    Spoilt,
)
from falcon_core.times import CLOCK_SECONDS, FRESH_SECONDS, LIVENESS_TTL_SECONDS
from falcon_core.wire.launcher.launch import LaunchRank, LaunchStatus, makes_standbys
from falcon_core.wire.launcher.printed import RankOutput
from falcon_core.wire.reporting.messages import RankSignals, Summary
from falcon_operator.base.ports import ContainerView, PodView, Received
from falcon_operator.intent.model.claim_limits import allowance
from falcon_operator.intent.model.intent import claim_prefix
from falcon_operator.intent.model.node_troubles import node_trouble, who_is_busy
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.intent.observation import rank_groups
from falcon_operator.intent.observation.free_nodes import evicting_taint, open_nodes
from falcon_operator.intent.observation.nan_numbers import numbers_seen
from falcon_operator.intent.observation.notices import notice
from falcon_operator.intent.observation.pod_ends import ended_badly, other_end, over, pod_end
from falcon_operator.intent.observation.pod_starts import has_started, longest_start_seconds, start_wait, waiting_for
from falcon_operator.manifests.instrument import AGENT_CONTAINER
from falcon_operator.manifests.validation import pool_problems

_NO_END = PodEnd()
# A container of the pod that ended so long before its agent fell silent, or a rank fails, may be why. Connections
# through a proxy that is gone are given up within seconds, or after the time-outs of the program that uses them.
OTHER_CONTAINER_SECONDS = 60.0
_OWN_ENDS = ("Running", "Exited")  # states of a launcher whose processes run or ended by themselves, not by order


def observe(snap: Snapshot, membership: Membership) -> Observation:
    """Return the job's present state, as the recovery's ladders see it."""
    running, age = membership.phase == "Run", snap.phase_seconds
    # While a new generation gathers, the processes that are still there belong to the last generation.
    observed = membership.generation if running else membership.generation - 1
    places = spares(snap, membership)
    return Observation(
        now=snap.now,
        generation=membership.generation,
        running=running,
        running_seconds=age if running else 0.0,
        standbys_made=running
        and any(makes_standbys(launch_status(snap, member.pod_uid)) for member in membership.members),
        members=[_member(snap, membership, member, age) for member in membership.members],
        ranks=Ranks(
            chain.from_iterable(
                _ranks(snap, member, observed, done=running and member.replica in membership.done)
                for member in membership.members
            )
        ),
        prepared={move.replica: _prepared(snap, move) for move in membership.replacements if move.prepared},
        spares=places,
        free_nodes=(places.ready or 0) + len(open_nodes(snap, membership)),
        longest_start_seconds=longest_start_seconds(snap, membership),
        probes=_probes(snap, membership) if running else {},
        spoilt=Spoilt(numbers=numbers_seen(snap, membership) if running else []),
        nonce=snap.nonce,
        bus_healthy=bus_healthy(snap),
        elsewhere=snap.elsewhere,
    )


def _probes(snap: Snapshot, membership: Membership) -> dict[int, ProbeSeen]:
    """Return the pods' answers to a probe, by replica."""
    found = {}
    for member in membership.members:
        received, pod = snap.reports.summaries.get(member.pod_uid), snap.pod(member.pod_name)
        if received is not None and received.summary.probe is not None:
            found[member.replica] = ProbeSeen(
                report=received.summary.probe,
                address=pod.pod_ip if pod is not None else "",
                age_seconds=max(0.0, snap.monotonic - received.at_seconds),
            )
    return found


def bus_healthy(snap: Snapshot) -> bool:
    """Check whether the bus has been heard for so long that an agent that is gone is known to be gone.

    Only such a session can tell that an agent is silent.
    """
    since = snap.reports.session_healthy_since_seconds
    return since is not None and snap.monotonic - since >= LIVENESS_TTL_SECONDS


def alive(snap: Snapshot, pod_uid: str) -> bool | None:
    """Return whether the pod's agent lives; None where it has never been heard or the bus cannot tell.

    The bus cannot tell of a pod whose gateway is lost until its agent has had the time to reach another one.
    """
    if snap.reports.session_healthy_since_seconds is None:
        return None
    if pod_uid in snap.reports.alive:
        return True
    return False if pod_uid in snap.reports.gone_since_seconds else None


def launch_status(snap: Snapshot, pod_uid: str) -> LaunchStatus | None:
    summary = snap.summary(pod_uid)
    return summary.launch if summary else None


def acknowledged(launch: LaunchStatus | None, generation: int) -> bool:
    """Check whether no process of an older generation is left in the pod.

    A launcher that has not run anything has no such process either.
    """
    return launch is not None and (launch.dead_below >= generation or (launch.generation == 0 and not launch.ranks))


def _is_signalled(launch: LaunchStatus | None, generation: int) -> bool:
    """Check whether a launcher that runs the generation stops without an order: a signal ends its pod."""
    return (
        launch is not None
        and launch.state == "Stopping"
        and launch.generation == generation
        and launch.dead_below >= generation
    )


def _member(snap: Snapshot, membership: Membership, member: Member, age: float) -> MemberSeen:
    pod = snap.pod(member.pod_name)
    moved = membership.replacement(member.replica)
    running = membership.phase == "Run"
    # A prepared pod is no member yet: this replica still trains in its old pod, on the old node.
    pinned = moved is not None and not moved.prepared and bool(moved.node)
    # A pod that waits has no node yet. Where its node was chosen ahead, that node's health counts.
    node_name = member.node or (moved.node if moved is not None and pinned else "")
    node = snap.nodes.get(node_name)
    launch = launch_status(snap, member.pod_uid)
    agent = pod.containers.get(AGENT_CONTAINER) if pod is not None else None
    done = member.replica in membership.done
    # A pod that has been seen and is missing now is lost; one that was never seen is only late.
    state: Literal["Awaited", "Present", "Ended", "Deleting", "Gone"]
    if pod is None:
        state = "Gone" if member.pod_uid else "Awaited"
    elif ended_badly(snap.job, pod):
        state = "Ended"
    elif pod.deleting:
        state = "Deleting"
    else:
        state = "Present" if pod.node else "Awaited"
    return MemberSeen(
        replica=member.replica,
        pod_name=member.pod_name,
        pod_uid=member.pod_uid,
        address=pod.pod_ip if pod is not None else "",
        node=node_name,
        pod=state,
        done=done,
        end=_end(snap, member, pod, state),
        started=pod is not None and has_started(snap, pod),
        # While the job runs every pod has started, but for one that is made again while the others train.
        start=start_wait(snap, pod, snap.judge) if pod is not None and (not running or launch is None) else None,
        pinned=pinned,
        alive=alive(snap, member.pod_uid),
        silent_seconds=snap.monotonic - snap.reports.gone_since_seconds.get(member.pod_uid, -math.inf),
        agent_ended_seconds=_agent_ended_seconds(snap, pod.uid if pod is not None else "", agent),
        agent_ended=agent is not None and _has_ended(agent),
        node_health=NodeHealth(
            ready=not node_name or (node is not None and node.ready),
            usable=node is not None
            and node.ready
            and not node.unschedulable
            and evicting_taint(snap.job.spec.template["spec"], node, pod, snap.pods) is None,
            trouble=node_trouble(node, platform_judge(snap.settings.error_overrides)),
        ),
        busy=who_is_busy(node, snap.now),
        notice=notice(node, pod, snap.settings.departure_taints, snap.judge)
        if snap.job.spec.recovery.on_drain == "Move" and not done
        else None,
        network=summary.network if (summary := snap.summary(member.pod_uid)) is not None else None,
        launcher=LauncherSeen(
            signalled=running and _is_signalled(launch, membership.generation),
            acknowledged=acknowledged(launch, membership.generation),
            unacknowledged_seconds=age if launch is not None else 0.0,
            stuck=launch is not None and launch.stuck,
            # A launcher keeps its last error: one of an earlier generation has been dealt with.
            start_error=(launch.error or "")
            if launch is not None and launch.generation == membership.generation
            else "",
            oom_kills=launch.oom_kills if launch is not None else None,
            group=rank_groups.living_group(snap, membership) if running and member.replica == 0 else None,
        ),
    )


def _end(snap: Snapshot, member: Member, pod: PodView | None, state: str) -> PodEnd:
    """Return why the pod has ended or is deleted; of one that goes on, which container ended as trouble began."""
    if pod is None or state == "Awaited":
        return _NO_END
    if state != "Present":
        return pod_end(snap.job, pod, launch_status(snap, member.pod_uid), snap.judge)
    # Of nearly all pods no container has ever ended: a job of a thousand pods has them looked through each second.
    if not any(each.ended_unix for each in pod.containers.values()):
        return _NO_END
    gone_since = snap.reports.gone_since_seconds.get(member.pod_uid)
    silent_seconds = 0.0 if gone_since is None else snap.monotonic - gone_since
    received = snap.reports.summaries.get(member.pod_uid)
    ahead = _clock_ahead_seconds(snap, received) if received is not None else 0.0
    since = snap.now - ahead - silent_seconds - OTHER_CONTAINER_SECONDS
    # A helper that has done its work ends with 0, and takes no rank along.
    return other_end(snap.job, pod, snap.judge, since, failed=gone_since is None)


def _has_ended(agent: ContainerView) -> bool:
    """Check whether the kubelet says that the container has ended and does not run again.

    For up to fifteen seconds it says so by the container's end alone, and then by its own waiting.
    """
    return not agent.running and (agent.exit_code is not None or agent.waiting_reason == "CrashLoopBackOff")


def _agent_ended_seconds(snap: Snapshot, pod_uid: str, agent: ContainerView | None) -> float | None:
    """Return how long ago the agent's container ended, as its kubelet says by the node's clock."""
    if agent is None or not agent.ended_unix:
        return None
    received = snap.reports.summaries.get(pod_uid)
    return snap.now - agent.ended_unix - (_clock_ahead_seconds(snap, received) if received is not None else 0.0)


def _ranks(snap: Snapshot, member: Member, generation: int, *, done: bool) -> list[RankSeen]:
    numbers = range(member.first_rank, member.first_rank + snap.job.spec.procs_per_replica)
    received = snap.reports.summaries.get(member.pod_uid)
    launch = _launch_of(received.summary, generation) if received is not None else None
    # A rank whose agent has not reported is unknown. That is no sign of its end.
    if received is None or launch is None:
        return [_unheard(number, member.replica, done=done) for number in numbers]
    processes = {process.rank: process for process in launch.ranks}
    # Such a pod has one process that stands for all of its ranks.
    if snap.job.spec.launcher == "Own" and launch.ranks:
        processes = _of_one_launcher(numbers, launch.ranks[0])
    # Signals and output of another generation belong to other processes.
    same = received.summary.generation == generation
    signals = {sent.rank: sent for sent in received.summary.ranks} if same else {}
    output = {each.local_rank: each for each in received.summary.output} if same else {}
    age = snap.monotonic - received.at_seconds
    ahead = _clock_ahead_seconds(snap, received)
    ranks = [
        _rank(number, member.replica, processes.get(number), signals.get(number), received.summary, age, ahead)
        for number in numbers
    ]
    return _with_output(ranks, processes, output, alone=len(numbers) == len(launch.ranks))


def _unheard(number: int, replica: int, *, done: bool) -> RankSeen:
    """Return what is seen of a rank of which no report says anything. ``done``: the intent knows that it ended well."""
    if done:
        return RankSeen(rank=number, replica=replica, process="Ended", exit_code=0)
    return RankSeen(rank=number, replica=replica)


def _launch_of(summary: Summary, generation: int) -> LaunchStatus | None:
    """Return what the launcher said last of this generation's processes before it was ordered to stop them."""
    for launch in (summary.launch, summary.ended):
        if launch is not None and launch.generation == generation and launch.state in _OWN_ENDS:
            return launch
    return None


def _of_one_launcher(numbers: range, launcher: LaunchRank) -> dict[int, LaunchRank]:
    """Return what a launcher of the user's own shows of each of its ranks: its own state and end.

    Where it says which rank failed first, that rank has failed so, and how the others ended is not known.
    """
    first = launcher.first_end
    if first is None or not (first.exit_code or first.signal):
        return dict.fromkeys(numbers, launcher)
    # A launcher that numbers nodes by itself may count otherwise than the plan; mpirun starts ranks of other pods, too.
    at = first.rank if first.rank in numbers or first.local_rank is None else numbers.start + first.local_rank
    if at not in numbers:
        return dict.fromkeys(numbers, launcher)
    failed = msgspec.structs.replace(launcher, exit_code=first.exit_code, signal=first.signal)
    other = msgspec.structs.replace(launcher, exit_code=None, signal=None, oom_killed=False, last_words="")
    return {number: failed if number == at else other for number in numbers}


def _clock_ahead_seconds(snap: Snapshot, received: Received) -> float:
    """Return by how much the operator's clock is ahead of the pod's node's; 0 where they agree within a second.

    The way of a report counts as well: clocks that agree better than that are better left alone.
    """
    if received.clock_seconds is None:
        return 0.0
    ahead = received.clock_seconds + snap.now - snap.monotonic
    return ahead if abs(ahead) > CLOCK_SECONDS else 0.0


def _rank(
    number: int,
    replica: int,
    process: LaunchRank | None,
    sent: RankSignals | None,
    summary: Summary,
    age: float,
    ahead: float,
) -> RankSeen:
    """Return what is seen of a rank.

    ``age``: the summary's, seconds. ``ahead``: seconds by which the operator's clock is ahead of the node's.
    """
    if process is None:
        return RankSeen(rank=number, replica=replica)
    # Signals that are older than the process are those of the process before it.
    known = sent is not None and not _older(sent, process)
    signals = sent if sent is not None and known else NOTHING_SENT
    quiet_ns, silent, stalled = 0, 0.0, False
    fresh = known and age <= FRESH_SECONDS
    if signals.last_call_unix_ns is not None:  # both times are by the node's clock; the age is by the operator's
        quiet_ns = summary.unix_ns - signals.last_call_unix_ns
        silent = quiet_ns / 1e9 + age
        # Without the age: an agent reports at once when a rank falls silent, and when it moves again.
        stalled = fresh and signals.hang_deadline_ns is not None and quiet_ns > signals.hang_deadline_ns
    seen = RankSeen(
        rank=number,
        replica=replica,
        process="Running" if process.state == "Running" else "Ended",
        clock_ahead=ahead,
        sent=signals,
        throttle=summary.throttle if known else None,
        fresh=fresh,
        silent_seconds=silent,
        quiet_seconds=quiet_ns / 1e9,
        stalled=stalled,
    )
    # Of most ranks of a large job there is no more to say, and a struct is dearer for each field that is set.
    return seen if _is_plain(process) else _with_process(seen, process, summary, age, known=known)


def _is_plain(process: LaunchRank) -> bool:
    """Check whether the launcher reports no more of the process than its state."""
    return not (
        process.blocked_since_unix_ns is not None
        or process.exit_code is not None
        or process.signal is not None
        or process.ended_unix_ns
        or process.last_words
        or process.oom_killed
    )


def _with_process(seen: RankSeen, process: LaunchRank, summary: Summary, age: float, *, known: bool) -> RankSeen:
    """Return the rank with how its process has ended, and since when it is blocked. ``known``: its signals count."""
    blocked_since = process.blocked_since_unix_ns
    return msgspec.structs.replace(
        seen,
        exit_code=process.exit_code,
        signal=process.signal,
        oom_killed=process.oom_killed,
        last_words=process.last_words,
        ended_at=process.ended_unix_ns / 1e9 + seen.clock_ahead if process.ended_unix_ns else None,
        blocked_seconds=max(0.0, (summary.unix_ns - blocked_since) / 1e9 + age)
        if known and blocked_since is not None
        else None,
    )


def _with_output(
    ranks: list[RankSeen], processes: dict[int, LaunchRank], output: dict[int, RankOutput], *, alone: bool
) -> list[RankSeen]:
    """Return the ranks with what each has printed. ``alone``: each rank has a process of its own."""
    if not output:
        return ranks
    found = []
    for rank in ranks:
        process = processes.get(rank.rank)
        said = output.get(process.local_rank) if process is not None else None
        if said is not None and said.printed:
            # Of several ranks' process it is not known which rank has failed.
            uncaught = alone and said.uncaught_unix_ns > 0
            uncaught_at = said.uncaught_unix_ns / 1e9 + rank.clock_ahead if uncaught else None
            rank = msgspec.structs.replace(rank, printed=said.printed, alone=alone, uncaught_at=uncaught_at)
        found.append(rank)
    return found


def _older(signals: RankSignals, process: LaunchRank) -> bool:
    """Check whether the signals come from a process that ran before ``process``.

    After the launcher has started a new process, an agent may still read the ring of the process before it.
    """
    return signals.last_call_unix_ns is not None and signals.last_call_unix_ns < process.started_unix_ns


def _prepared(snap: Snapshot, moved: Replacement) -> PreparedSeen:
    pod = snap.pod(moved.pod_name)
    if pod is None:
        # The pod is made once its spare is claimed, so until then the pool is why it waits.
        waiting = "" if moved.node or not moved.pool else f"no spare of pool {moved.pool} has been given yet"
        return PreparedSeen(
            pod_name=moved.pod_name,
            waited_seconds=snap.now - moved.at,
            claimed_node=moved.node,
            message=waiting,
        )
    launch = launch_status(snap, pod.uid)
    ended = over(snap.job, pod) or pod.deleting
    return PreparedSeen(
        pod_name=moved.pod_name,
        waited_seconds=snap.now - moved.at,
        claimed_node=pod.node or moved.node,
        ready=not ended and launch is not None and alive(snap, pod.uid) is True,
        lost=ended,
        message=pod_end(snap.job, pod, launch, snap.judge).text if ended else waiting_for(pod),
    )


def pool_messages(snap: Snapshot) -> list[str]:
    """Return what is wrong with the pool that the job names; empty if nothing is wrong or the job names no pool."""
    return [str(problem) for problem in pool_problems(snap.job, snap.pool)]


def spares(snap: Snapshot, membership: Membership) -> Spares:
    """Return where a replacement would go; if there is none, the reason. Ready pods without a replica are places."""
    left = membership.excluded_nodes
    standing = sum(pod.ready for pod in membership.standbys)
    standing += sum(pod.ready and pod.node not in left for pod in membership.joining)
    found = unclaimed(snap, membership)
    if not standing or found.ready is None:
        return found
    return msgspec.structs.replace(found, available=True, message="", ready=found.ready + standing)


def unclaimed(snap: Snapshot, membership: Membership) -> Spares:
    """Return which spares the job may still claim; if there is none, the reason."""
    reference = snap.job.spec.warm_pool_ref
    if reference is None:
        return Spares()
    name = reference.name
    # What is wrong with the pool itself comes first: no limit explains it.
    problems = pool_messages(snap)
    if problems or snap.pool is None:
        return Spares(pool=name, available=False, message="; ".join(problems))
    allowed = allowance(snap.pool, claim_prefix(snap.job), snap.now)
    if not allowed.spares:
        return Spares(pool=name, available=False, message=allowed.message, ready=0, limit=allowed.limit)
    avoid = snap.avoided(membership)
    ready = [spare for spare in snap.pool.status.spares if spare.state == "Ready" and spare.node not in avoid]
    if not ready:
        return Spares(pool=name, available=False, message=f"WarmPool {name} has no ready spare", ready=0)
    return Spares(pool=name, ready=min(len(ready), allowed.spares))
