"""Build the job's conditions, one function each, by the API conventions: the transition time changes with the status.

``Ready``: all ranks of the present generation train. ``Accepted``: the spec can run. ``Failed`` and ``Succeeded`` are
final.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from falcon_core.recovery import JobChange, MemberSeen, Policy, SlowIncident, StandbyPod
from falcon_operator.api.common import Condition
from falcon_operator.api.trainingjob import TrainingJobStatus
from falcon_operator.api.warmpool import WarmPoolStatus
from falcon_operator.base.ports import PodView
from falcon_operator.base.time_format import clock_time, timestamp
from falcon_operator.intent.observation import job_observation, pod_starts
from falcon_operator.intent.placement import last_resort, standby_pods
from falcon_operator.manifests.instrument import AGENT_CONTAINER
from falcon_operator.manifests.pods import secret_name
from falcon_operator.status.groups.group_status import group_words
from falcon_operator.status.text.common_cause import common_words
from falcon_operator.status.text.elastic import unused_sizes
from falcon_operator.status.text.format import change_words, link_where, listed
from falcon_operator.status.text.outage import open_outage, outage_words
from falcon_operator.status.text.planned_move import moving_words
from falcon_operator.status.view import State, View

replace = msgspec.structs.replace
START_SECONDS = 20.0  # of a generation, in which imports of all ranks keep a busy node's agent from its CPU
SILENT_SECONDS = 5.0  # of an agent, after which people hear of it even then
NEVER_HEARD_SECONDS = 60.0  # of a pod that runs, in which its agent has to be heard first
CUT_OFF_SECONDS = 15.0  # of agents that were heard: a gateway that restarts is reached again within seconds
NAMED_NODES = 16  # in a command that a person copies
_BUS_AWAY = "the operator hears neither etcd nor all gateways, so it watches no job"
_LOOK_AT_GATEWAYS = (
    "Look at the gateways: kubectl get pods,networkpolicies in Falcon's namespace"
    " (docs/platform-engineer.md, When a gateway is lost)"
)
ALWAYS_SHOWN = frozenset({"Ready"})  # the others are added when they are first true, or first matter


class Finding(msgspec.Struct, frozen=True):
    """The content of a condition. ``value`` None: unknown."""

    type: str
    value: bool | None
    reason: str
    message: str
    shown: bool = False  # also where it has never been true
    quiet: bool = False  # only where the condition is there already: that all is well needs no line


def set_condition(
    conditions: list[Condition],
    type_: str,
    value: bool | None,
    reason: str,
    message: str,
    *,
    now: float,
    observed_generation: int,
) -> list[Condition]:
    """Return the conditions with one of them set. A condition that has never been true is not added as false."""
    finding = Finding(type_, value, reason, message)
    return put(conditions, [finding], now=now, observed_generation=observed_generation)


def put(
    conditions: list[Condition], findings: list[Finding], *, now: float, observed_generation: int
) -> list[Condition]:
    """Return the conditions with the findings entered: a known condition is replaced, a new one is added at the end."""
    result = list(conditions)
    for finding in findings:
        at = next((at for at, condition in enumerate(result) if condition.type == finding.type), None)
        # A condition that was never true or unknown would only lengthen the list.
        news = finding.value is not False or finding.shown or finding.type in ALWAYS_SHOWN
        if at is None and (finding.quiet or not news):
            continue
        word = _word(finding.value)
        # The time of the transition stays while only the message changes (the API's conventions).
        moved = at is None or result[at].status != word
        after = Condition(
            type=finding.type,
            status=word,
            reason=finding.reason,
            message=finding.message,
            last_transition_time=timestamp(now) if at is None or moved else result[at].last_transition_time,
            observed_generation=observed_generation,
        )
        if at is None:
            result.append(after)
        else:
            result[at] = after
    return result


def _word(value: bool | None) -> Literal["True", "False", "Unknown"]:
    return "Unknown" if value is None else "True" if value else "False"


def is_true(status: TrainingJobStatus | WarmPoolStatus, type_: str) -> bool:
    """Check whether the status has the condition and the condition is true."""
    return any(condition.type == type_ and condition.status == "True" for condition in status.conditions)


def live_conditions(view: View, state: State, unreadable: tuple[str, ...]) -> list[Finding]:
    """Return the findings for all conditions of a job that starts, runs or recovers."""
    findings = [
        ready(view, state),
        degraded(view),
        job_changed(view.intent.recovery.levels.change),
        recovering(view, state),
        agent_lost(view),
        agents_cut_off(view),
        nodes_healthy(view),
        moving(view),
        elastic_size(view),
        pool_missing(view),
        standby_ready(view),
        reports_readable(view),
        run_readable(unreadable),
        Finding("StatusShown", True, "Whole", "the API server took the whole status", quiet=True),
        Finding("Suspended", False, "Resumed", "spec.suspend is false"),
        Finding("Accepted", True, "Valid", "the spec can run", quiet=True),
    ]
    return [finding for finding in findings if finding is not None]


def ready(view: View, state: State) -> Finding:
    """Build the finding on whether all ranks train, and if they do not, what they wait for."""
    if view.blind_since is not None and view.snap.reports.bus_full:
        message = (
            f"no report from any agent since {clock_time(view.blind_since)}: training may go on, but Falcon"
            " cannot watch it; etcd is full and refuses every report, and the operator makes room in it"
        )
        return Finding("Ready", None, "BusFull", message)
    if view.blind_since is not None:
        message = (
            f"no report from any agent since {clock_time(view.blind_since)}: training may go on, but Falcon"
            f" cannot watch it; {_whose_silence(view)}"
        )
        return Finding("Ready", None, "Blind", message)
    # Reports arrive, so from here on the ranks' own progress decides.
    if view.stalled_since is not None:
        since, awaited = clock_time(view.stalled_since), f"; {view.awaited}" if view.awaited else ""
        hang = ": a hang" if view.intent.recovery.hang else ""
        alive = view.unended or "all processes are alive"
        message = f"{alive}, but no rank has made progress since {since}{hang}{awaited}"
        return Finding("Ready", False, "Stalled", message)
    if state in ("Running", "Degraded"):
        watched = f"; Falcon cannot watch them: {view.untracked}" if view.untracked else ""
        trains = view.unended or f"{_ranks_that_train(view)} of generation {view.intent.membership.generation} train"
        return Finding("Ready", True, "Training", f"{trains}{watched}")
    return Finding("Ready", False, state, view.gathering.waiting or f"the job is {state.lower()}")


def _ranks_that_train(view: View) -> str:
    # Of a pod that is made again while the others train, nothing is heard yet.
    some = view.intent.recovery.stop is not None and view.training < view.total
    return f"{view.training} of {view.total} ranks" if some else f"all {view.total} ranks"


def is_shown(slow: SlowIncident, policy: Policy) -> bool:
    """Check whether the summary speaks of a slowdown: not while it is suspected, nor when it is about to end."""
    return bool(slow.id) or (slow.is_incident and slow.times.slow_ns > slow.times.healthy_ns * (1 + policy.verify))


def degraded(view: View) -> Finding:
    """Build the finding on whether the job is slow, by a rank, a link, or for an unknown reason."""
    slow = view.intent.recovery.leader
    if slow is not None and slow.culprit is not None and slow.phase != "Checking":
        culprit = slow.culprit
        message = (
            f"rank {culprit.rank} (pod {culprit.pod_name}, node {culprit.node}) has been slow since"
            f" {timestamp(slow.onset.at)}: see diagnosis {slow.id}"
        )
        return Finding("Degraded", True, "Straggler", message)
    if slow is not None and slow.culprit is None and slow.link is not None:
        message = f"slow transfers over {link_where(slow.link)}: see diagnosis {slow.id}"
        return Finding("Degraded", True, "SlowLink", message)
    change = view.intent.recovery.levels.change
    if change is not None and change.outside is not None:
        message = f"all ranks compute longer alike since {timestamp(change.since)}: {common_words(change.outside)}"
        return Finding("Degraded", True, "CommonCause", message)
    if slow is not None and slow.unexplained and is_shown(slow, view.policy):
        ratio = slow.times.slow_ns / slow.times.healthy_ns
        since = timestamp(slow.onset.at)
        message = f"iterations have taken {ratio:.1f}x the healthy time since {since}; no rank or link stands out"
        return Finding("Degraded", True, "Unexplained", message)
    return Finding("Degraded", False, "NoStraggler", "no rank is known to be slow")


def job_changed(change: JobChange | None) -> Finding:
    """Build the finding on whether the job itself has changed: all ranks compute longer alike."""
    if change is None:
        message = "all ranks compute as fast as before, or as fast as since this generation began"
        return Finding("JobChanged", False, "AsBefore", message)
    if change.outside is not None:
        message = f"all ranks compute longer alike, but not by a change of the job: {common_words(change.outside)}"
        return Finding("JobChanged", False, "CommonCause", message)
    words = change_words(change)
    if change.recurring:
        return Finding("JobChanged", True, "Recurs", f"{words}; the job has gone through such a phase before")
    return Finding("JobChanged", True, "AllRanksAlike", words)


def recovering(view: View, state: State) -> Finding:
    """Build the finding on whether training stands still for a repair."""
    if state != "Recovering":
        return Finding("Recovering", False, "Recovered", "no recovery is under way")
    recovery = view.intent.recovery
    outage = open_outage(recovery)
    if outage is not None and recovery.stop is not None:
        words = outage_words(recovery.stop, outage, view.policy, view.snap.now)
        return Finding("Recovering", True, "Outage", words)
    incident = next((each.id for each in (recovery.stop, recovery.move, recovery.leader) if each is not None), "")
    return Finding("Recovering", True, "Restarting", f"training is stopped for a repair: see diagnosis {incident}")


def agents_lost(view: View) -> list[int]:
    """Return the replicas whose silent agents are reported.

    An agent that starves for a moment while the ranks start is no news: it is heard again a second later.
    """
    lost = view.live.agents_lost
    silent = [view.obs.members[replica].silent_seconds for replica in lost]
    starting = view.snap.now - view.intent.membership.since < START_SECONDS
    return [] if lost and view.watching and starting and max(silent) < SILENT_SECONDS else list(lost)


def agent_lost(view: View) -> Finding | None:
    """Build the finding on whether an agent is silent; None where the bus cannot tell."""
    if all_silent(view):
        return Finding("AgentLost", None, "AllSilent", "the condition AgentsCutOff says which agents", quiet=True)
    lost = agents_lost(view)
    if view.live.agents_lost and not lost:
        return None
    if lost and view.watching:
        pods = listed([view.obs.members[replica].pod_name for replica in lost])
        peers = (
            "its peers have made progress since: training goes on, but Falcon cannot watch that pod"
            if view.goes_on_without(lost)
            else "it is not known yet whether training goes on"
        )
        return Finding("AgentLost", True, "AgentSilent", f"the agent in {pods} does not answer; {peers}")
    # While the bus has trouble, silence proves nothing about an agent.
    if view.live.bus_trouble:
        return _most_silent(view)
    if view.intent.recovery.is_stopped or not view.obs.running:
        return Finding("AgentLost", False, "Recovering", "training is stopped for a repair")
    return Finding("AgentLost", False, "AgentsAlive", "every agent reports")


def _most_silent(view: View) -> Finding | None:
    """Build the finding on a job of which most agents are silent, though some are heard; None for other jobs."""
    silent = [member for member in view.obs.members if _is_silent(member) and member.silent_seconds >= CUT_OFF_SECONDS]
    heard = [member for member in view.obs.members if member.alive]
    if not (silent and heard and view.watching):
        return None
    names, nodes = listed([member.pod_name for member in silent]), listed([member.node for member in silent])
    message = (
        f"the agents in {names} do not answer, though that in {heard[0].pod_name} does: training may go on, and nothing"
        f" is restarted for it; look at the network of the nodes {nodes}, at NetworkPolicies that select these pods,"
        f" and at kubectl logs {silent[0].pod_name} -n {view.snap.job.metadata.namespace} -c {AGENT_CONTAINER}"
    )
    return Finding("AgentLost", True, "MostAgentsSilent", message)


def _is_silent(member: MemberSeen) -> bool:
    return member.pod == "Present" and member.alive is False and not member.done


def all_silent(view: View) -> list[MemberSeen]:
    """Return the members with a pod where the agents of all have been silent for a while; empty for other jobs."""
    present = [member for member in view.obs.members if member.pod == "Present" and not member.done]
    silent = [each for each in present if _is_silent(each) and each.silent_seconds >= CUT_OFF_SECONDS]
    # A node that counts as lost is dealt with: its silence is explained.
    return silent if len(silent) == len(present) and not view.live.lost else []


def _whose_silence(view: View) -> str:
    """Return what to look at where no agent of the job is heard."""
    others = view.snap.reports.others
    if not view.obs.bus_healthy:
        return f"{_BUS_AWAY}: look at the gateways and at etcd"
    if others.reporting:
        return f"{_others_heard(others.reporting)}, so the way of this job alone is cut: see condition AgentsCutOff"
    return "look at the gateways, at etcd and at the containers falcon-agent"


def _others_heard(count: int) -> str:
    return f"those of {count} other job{'s' if count > 1 else ''} are heard"


def agents_cut_off(view: View) -> Finding | None:
    """Build the finding on whether no agent of the job is heard, and whether the cause lies with this job alone.

    Return None where that is not known yet.
    """
    never = _never_heard(view)
    if never is not None:
        return never
    if not view.obs.bus_healthy:
        if view.blind_since is None:
            return None  # an operator that has just started
        return Finding("AgentsCutOff", None, "BusAway", _BUS_AWAY, quiet=True)
    silent = all_silent(view)
    if not silent:
        return Finding("AgentsCutOff", False, "NotKnown", "nothing is known to keep the agents from the gateways")
    others = view.snap.reports.others
    if not others.reporting:
        return _bus_silent(view, silent)
    since = clock_time(view.snap.now - min(member.silent_seconds for member in silent))
    said = f"no agent of this job has been heard since {since}, while {_others_heard(others.reporting)}"
    if all(member.agent_ended for member in silent):
        return Finding("AgentsCutOff", True, "AgentsEnded", f"{said}: the agents' containers do not run; {_logs(view)}")
    if not any(member.node_health.ready for member in silent):
        return Finding("AgentsCutOff", True, "NodesNotReady", f"{said}, and {_nodes_not_ready(silent)}")
    message = (
        f"{said}: gateways and etcd work, and the way of this job alone is cut. Training may go on, and nothing is"
        f" restarted. {_own_way(view)}"
    )
    return Finding("AgentsCutOff", True, "OnlyThisJob", message)


def _bus_silent(view: View, silent: list[MemberSeen]) -> Finding:
    """Build the finding on a job that is silent while no other job's agent is heard."""
    since = clock_time(view.snap.now - min(member.silent_seconds for member in silent))
    count = view.snap.reports.others.silent
    if count:
        them = f"{count} other job{'s are' if count > 1 else ' is'} silent as well"
        message = (
            f"no agent of any job has been heard since {since}: {them}, so the gateways or the way to them are the"
            f" cause, and not this job. Training may go on, and nothing is restarted. {_LOOK_AT_GATEWAYS}"
        )
        return Finding("AgentsCutOff", None, "AllJobs", message)
    message = (
        f"no agent of this job has been heard since {since}, and no other job is there to compare with: its own way or"
        f" the gateways may be the cause. Training may go on, and nothing is restarted. {_LOOK_AT_GATEWAYS}."
        f" {_own_way(view)}"
    )
    return Finding("AgentsCutOff", None, "NoOtherJob", message)


def _own_way(view: View) -> str:
    """Return what may cut the way of one job's agents, and how to see which of it does."""
    job = view.snap.job
    namespace = job.metadata.namespace
    return (
        f"Look at the NetworkPolicies of namespace {namespace} (egress to port 7443 of the gateways and to DNS:"
        " docs/platform-engineer.md, The gateway), at the certificate in"
        f" Secret {secret_name(job)} (openssl x509 -noout -enddate), and at {_logs(view)}"
    )


def _logs(view: View) -> str:
    pod = next(member.pod_name for member in view.obs.members if _is_silent(member))
    return f"kubectl logs {pod} -n {view.snap.job.metadata.namespace} -c {AGENT_CONTAINER}"


def _nodes_not_ready(silent: list[MemberSeen]) -> str:
    """Return what follows where all nodes of a job are lost, or cut off while their ranks train on."""
    nodes = sorted({member.node for member in silent})
    names = " ".join(nodes) if len(nodes) <= NAMED_NODES else "NODE"
    return (
        f"its nodes {listed(nodes)} are NotReady: they are lost, or cut off while they train on, so nothing is"
        " restarted yet. The job moves when Kubernetes gives the nodes up and deletes their pods: after 5 minutes, or"
        " never where spec.template.spec.tolerations tolerates node.kubernetes.io/unreachable. Once you know that they"
        " are off:"
        f" kubectl taint nodes {names} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    )


def _never_heard(view: View) -> Finding | None:
    """Build the finding on running pods of which no agent has ever reported; None for other jobs.

    Whether the network plugin enforces policies at all is not known.
    """
    snap = view.snap
    heard = bool(snap.reports.alive or snap.reports.summaries)
    running = [pod for pod in snap.pods if pod.phase == "Running"]
    if not heard and running:
        # No policy of the gateways can select pods on the host's network by their labels.
        on_host = snap.job.spec.template.get("spec", {}).get("hostNetwork") is True
        if on_host and not snap.settings.host_network_admitted:
            message = (
                "no agent has reported yet, and spec.template.spec.hostNetwork is true: the gateways' NetworkPolicy"
                " admits no pods on the host's network; list their nodes' CIDRs in the chart's"
                " networkPolicy.hostNetworkJobs"
            )
            return Finding("AgentsCutOff", True, "HostNetwork", message)
        if view.obs.bus_healthy and all(_is_late(pod, snap.now) for pod in running):
            if snap.reports.others.silent and not snap.reports.others.reporting:
                return Finding("AgentsCutOff", None, "AllJobs", f"no agent of any job is heard. {_LOOK_AT_GATEWAYS}")
            message = (
                f"no agent has reported though its pod has run for {NEVER_HEARD_SECONDS:.0f} s, and the gateways are"
                " heard: a NetworkPolicy that selects the pods for egress has to let them reach port 7443 of the"
                " gateways, DNS and each other (docs/platform-engineer.md, The gateway);"
                f" kubectl logs {running[0].name} -c {AGENT_CONTAINER} says what fails"
            )
            return Finding("AgentsCutOff", True, "NeverHeard", message)
    return None


def _is_late(pod: PodView, now: float) -> bool:
    return pod.started_unix > 0 and now - pod.started_unix >= NEVER_HEARD_SECONDS


def nodes_healthy(view: View) -> Finding:
    """Build the finding on whether a node of the job reports grave trouble of its hardware."""
    troubled = [
        f"node {member.node} ({member.pod_name}) reports {member.node_health.trouble.text}"
        for member in view.obs.members
        if member.node_health.trouble is not None and member.node_health.trouble.grave
    ]
    if not troubled:
        message = "no node of the job reports trouble of its hardware"
        return Finding("NodesHealthy", True, "NoTrouble", message, quiet=True)
    when = "with the next restart, if a spare is ready" if view.obs.spares.pool else "when it fails there"
    message = f"{listed(troubled)}; training goes on without a restart; the node is evicted from the job {when}"
    return Finding("NodesHealthy", False, "HardwareTrouble", message, shown=True)


def moving(view: View) -> Finding:
    """Build the finding on whether the job has to leave nodes, and when it does."""
    recovery = view.intent.recovery
    if not recovery.leaving:
        return Finding("Moving", False, "NothingToLeave", "no node of the job is cordoned or about to shut down")
    urgent = any(entry.urgent for entry in recovery.leaving)
    return Finding("Moving", True, "NodeGoes" if urgent else "Cordoned", moving_words(recovery, view.snap.now))


def elastic_size(view: View) -> Finding | None:
    """Build the finding on whether an elastic job has all replicas and ranks that it asks for; None for other jobs."""
    replicas, ranks = _replicas(view), _ranks_of_group(view)
    if replicas is None or ranks is None or ranks.value is None:
        return replicas or ranks
    # What says more comes first: fewer replicas, then fewer ranks of these.
    first = ranks if replicas.value and not ranks.value else replicas
    return replace(first, message=f"{replicas.message}; {ranks.message}", shown=True)


def _ranks_of_group(view: View) -> Finding | None:
    """Build the finding on whether all ranks are in the group that goes on without a lost rank."""
    group = view.group
    if group is None:
        # While ranks restart they have not met yet.
        known = view.snap.job.status.group is not None
        return Finding("Elastic", None, "NoGroup", "no group of ranks is reported", quiet=True) if known else None
    if group.ranks < group.wanted:
        return Finding("Elastic", False, "FewerRanks", group_words(group), shown=True)
    return Finding("Elastic", True, "AllRanks", group_words(group))


def _replicas(view: View) -> Finding | None:
    weighed, size = view.weighed, view.size
    if weighed is None or size is None:
        return None
    now, policy = len(view.intent.membership.members), view.policy
    since = f" since {size.since}: {size.why}" if size.since and now < weighed.wanted else ""
    awaits = f"; waits for {size.next}" if size.next else ""
    message = f"{now} of {weighed.wanted} replicas{since}{awaits}{unused_sizes(view.snap)}"
    if weighed.shrinking is not None:
        reason = "WaitsForNode" if policy.enforce or not weighed.shrinking.size else "WouldShrink"
        return Finding("Elastic", False, reason, message, shown=True)
    if now < weighed.wanted:
        return Finding("Elastic", False, "Fewer", message, shown=True)
    return Finding("Elastic", True, "AllReplicas", message)


def pool_missing(view: View) -> Finding | None:
    """Build the finding on whether the pool that the job names can be used; None for a job without a pool."""
    if view.snap.job.spec.warm_pool_ref is None:
        return None
    problems = job_observation.pool_messages(view.snap)
    if problems:
        return Finding("WarmPoolUsable", False, "Unusable", "; ".join(problems), shown=True)
    spares = view.obs.spares
    # Limits come before the number of ready spares: the job could not take one even if it were ready.
    if spares.limit:
        return Finding("WarmPoolUsable", False, f"{spares.limit}LimitReached", spares.message, shown=True)
    if spares.ready == 0:
        message = (
            f"{spares.message}: until one is ready, the job keeps its slow and cordoned nodes, and replaces a lost"
            " node by any free node that is no spare, or else by the best node that was evicted from the job"
        )
        outlook = last_resort.outlook(view.snap, view.intent)
        return Finding("WarmPoolUsable", True, "Empty", f"{message}; {outlook}" if outlook else message)
    return Finding("WarmPoolUsable", True, "Usable", "the pool exists and serves this namespace", quiet=True)


def standby_ready(view: View) -> Finding | None:
    """Build the finding on whether each rank has a standby; None where that is unknown now."""
    spec = view.snap.job.spec
    if spec.recovery.standby == "None":
        if spec.recovery.standby_replicas:
            return _with_pods(view, None) if view.obs.running else None
        return Finding("StandbyReady", False, "NotWanted", "spec.recovery.standby is None", quiet=True)
    if spec.launcher == "Own":
        message = "spec.launcher is Own: it starts its workers itself, so spec.recovery.standby has no effect"
        return Finding("StandbyReady", False, "OwnLauncher", message, shown=True)
    return _with_pods(view, _standbys(view)) if view.obs.running else None


def _standbys(view: View) -> Finding:
    members = view.intent.membership.members
    launches = [(member.pod_name, job_observation.launch_status(view.snap, member.pod_uid)) for member in members]
    held = [(pod, launch.standby) for pod, launch in launches if launch is not None and launch.standby is not None]
    count = sum(standby.ready for _, standby in held)
    reasons = [f"{pod}: {standby.why}" for pod, standby in held if standby.why]
    if count >= view.total:
        less = f", but these are less prepared than they could be: {listed(reasons)}" if reasons else ""
        return Finding("StandbyReady", True, "Waiting", f"all {view.total} ranks have a standby{less}")
    ready = f"{count} of {view.total} ranks have a standby"
    # A reason does not pass by itself; without one the standbys are only not ready yet.
    if reasons or view.untracked:
        message = f"{ready}; the other ranks start cold: {listed(reasons) if reasons else view.untracked}"
        return Finding("StandbyReady", False, "StartsCold", message, shown=True)
    return Finding("StandbyReady", False, "Preparing", f"{ready}; the rest start when training has settled", shown=True)


def _with_pods(view: View, ranks: Finding | None) -> Finding:
    """Add the pods that stand by to the finding on the ranks' standbys; None: the ranks have none."""
    wanted, pods = view.snap.job.spec.recovery.standby_replicas, view.intent.membership.standbys
    if not wanted:
        assert ranks is not None  # neither is wanted: this is not asked
        return ranks
    ready = [f"{pod.pod_name} on {pod.node}" for pod in pods if pod.ready]
    # One reason is enough: pods that stand by usually wait for the same thing.
    late = next((why for pod in pods if not pod.ready and (why := _waits_for(view, pod))), "")
    if len(ready) < wanted and not late and (ranks is None or ranks.value):
        late = "the rest start when training has settled"  # what is said of the ranks' standbys may say so, too
    message = f"{len(ready)} of {wanted} standby pods ready" + (f" ({listed(ready)})" if ready else "")
    if ready and ranks is not None:
        message += f", {standby_pods.held(view.snap, view.intent.membership)} with all imports done"
    message = "; ".join(filter(None, (message, late, ranks.message if ranks is not None else "")))
    if len(ready) < wanted:
        return Finding("StandbyReady", False, "Preparing", message, shown=True)
    return Finding("StandbyReady", True, "Waiting", message) if ranks is None else replace(ranks, message=message)


def _waits_for(view: View, standby: StandbyPod) -> str:
    """Return what a pod that is to stand by waits for; "" where nothing is known to be missing."""
    pod = view.snap.pod(standby.pod_name)
    if pod is not None:
        return pod_starts.waiting_for(pod)
    if standby.pool and not standby.node:
        return (
            job_observation.unclaimed(view.snap, view.intent.membership).message
            or f"WarmPool {standby.pool} gives a spare"
        )
    return view.snap.refused


def reports_readable(view: View) -> Finding:
    """Build the finding on whether the newest report of each pod could be read."""
    unread = view.snap.reports.unread
    pods = [pod for pod in view.snap.pods if pod.uid in unread]
    if not pods:
        return Finding(
            "ReportsReadable", True, "Readable", "the newest report of every agent could be read", quiet=True
        )
    message = (
        f"the newest report of {listed([pod.name for pod in pods])} cannot be read ({unread[pods[0].uid]}), so the"
        " report before it counts: check that its agent is of this release, and that nothing else reports in its place"
    )
    return Finding("ReportsReadable", False, "Unreadable", message, shown=True)


def run_readable(unreadable: tuple[str, ...]) -> Finding:
    """Build the finding on whether all of the TrainingRun could be read."""
    if unreadable:
        message = f"left out, since this version cannot read it: {'; '.join(unreadable)}"
        return Finding("RunReadable", False, "UnknownContent", message, shown=True)
    return Finding("RunReadable", True, "Readable", "all of the TrainingRun could be read", quiet=True)
