"""Measure the links while training stands still, where a link is slow and it is not known which (FALCON §4.3). Pure.

Passive evidence of a communicator of many nodes names all of them. So, one probe at a time: the pods start the
executors of the links while training goes on (``Prepare``); all ranks stop at one iteration's start, each pod measures
its links as soon as its own ranks stand (``Hold``), and training goes on when all have measured (``Release``). The
verdict compares links that were measured at the same time (``preflight_links``): of a link so slow that it is out of
line with its peers, the two ends are known from then on, and so is a node whose links are all slow.

What is ordered is stored with the state before it is sent, so that an operator that dies at any instant orders the same
again. Whatever goes wrong, training goes on: every pod opens its gates by itself (``wire.probe``).

**The budget.** Training stands still for ``spec.detection.pauseBudget`` of the job's time at most, and never within
``APART_SECONDS`` of the last pause. An incident has ``MOST_TRIES``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from falcon_core.recovery.cut import DisagreementError
from falcon_core.recovery.cut_order import Reported, stops
from falcon_core.recovery.observation import Observation, Policy, ProbeSeen
from falcon_core.recovery.preflight_links import LEAST_MACHINES, TRANSFER_MS, LinksFound, SlowMachine, judge_links
from falcon_core.recovery.probe_state import Pauses, Probe, Probed, RingSeat
from falcon_core.recovery.remembered import Place
from falcon_core.recovery.state import RecoveryState, SlowIncident, SlowLink
from falcon_core.recovery.strategies import swap_nodes
from falcon_core.times import PAUSE_TURN_SECONDS, PAUSE_UNENDED_SECONDS, URGENT_SECONDS
from falcon_core.topology.passes import ring_passes
from falcon_core.wire.check_links import LinksOrder, LinksReport
from falcon_core.wire.messages import MAX_DETAILED
from falcon_core.wire.probe import ProbeReport

PREPARE_SECONDS: Final = 20.0  # a Python starts in each pod, beside training
LEAD_SECONDS: Final = 0.5  # of training between the order and the cut: the way of the order
LONGEST_LEAD_SECONDS: Final = 8.0
ARRIVE_SECONDS: Final = 2.0  # beyond the lead and three iterations, until which all ranks stand at the cut
RELEASE_SECONDS: Final = 10.0  # until which all pods say for how long they stood still
EXPECTED_SECONDS: Final = 3.0  # that a pause takes, before any was measured
APART_SECONDS: Final = 60.0
AFTER_SECONDS: Final = 5.0  # in which an iteration that was interrupted ends
AGAIN_SECONDS: Final = 600.0  # after a probe by which all links are alike
MOST_TRIES: Final = 3  # of an incident
MOST_RANKS: Final = MAX_DETAILED
_SPEED_UP: Final = 0.8  # iterations may become shorter while the order is on its way
replace = msgspec.structs.replace


class Tested(msgspec.Struct, frozen=True):
    """A pod with what it says of its links."""

    replica: int
    pod_name: str
    node: str
    links: LinksReport | None


def step(state: RecoveryState, obs: Observation, policy: Policy) -> RecoveryState:
    """Follow the probe that is on, or begin one; called at the end of each look."""
    if not state.pauses.since and obs.running and obs.iterations:
        state = replace(state, pauses=replace(state.pauses, since=obs.now))
    probe = state.probe
    if probe is None:
        is_due = not hindrance(state, obs, policy) and obs.now >= allowed_at(state, policy)
        return _begun(state, obs) if is_due else state
    if probe.generation != obs.generation or not obs.running:
        return replace(_ended(state, probe, obs), probe=None)
    if probe.phase == "Release":
        return _released(state, probe, obs)
    slow, reports = state.slow, _reports(probe, obs)
    why = _unwanted(state, slow, obs, policy) if slow is not None and slow.id == probe.incident else "it is over"
    why = why or _given_up(reports, obs)
    if why:
        return _failed(state, probe, obs, why, passed=any(report.passed for report in reports.values()))
    return _prepared(state, probe, obs, policy) if probe.phase == "Prepare" else _measured(state, probe, obs)


def _given_up(reports: Mapping[int, ProbeReport], obs: Observation) -> str:
    """Return why a pod takes no part any more; "" if all do."""
    gone = next((f"the agent of pod {each.pod_name} is gone" for each in obs.members if each.alive is False), "")
    return next((report.why for report in reports.values() if report.why), gone)


def hindrance(state: RecoveryState, obs: Observation, policy: Policy) -> str:
    """Return why links are not measured under a pause, apart from the budget; "" if they can be."""
    slow = state.slow
    if slow is None or not slow.id:
        return "no incident is open"
    return _unwanted(state, slow, obs, policy)


def _unwanted(state: RecoveryState, slow: SlowIncident, obs: Observation, policy: Policy) -> str:
    link, probed = slow.link, slow.probed or Probed()
    if link is None or slow.phase != "Detected" or swap_nodes.has_ends(link):
        return "no link is slow whose ends are not known"
    if not policy.enforce:
        return "mode Observe stops no rank"
    if not policy.pause_budget:
        return "spec.detection.pauseBudget allows no pause"
    if len(obs.members) < LEAST_MACHINES:
        return "with two pods there is one link"
    if policy.world_size > MOST_RANKS:
        return f"more than {MOST_RANKS} ranks are not paused"
    if state.probe is None and probed.tries >= MOST_TRIES:
        return f"{MOST_TRIES} times it has shown nothing"
    if state.stop is not None or state.hang is not None or state.move is not None or obs.saving:
        return "something else is going on"
    return "" if obs.running and len(obs.ranks) == policy.world_size else "not all ranks run"


def allowed_at(state: RecoveryState, policy: Policy) -> float:
    """Return from when on the budget allows the next probe (unix seconds). The budget is more than nothing."""
    pauses = state.pauses
    apart = pauses.last_at + APART_SECONDS if pauses.last_at else 0.0
    expected = max(EXPECTED_SECONDS, pauses.longest_seconds)
    earned = pauses.since + (pauses.seconds + expected) / policy.pause_budget
    again = state.slow.probed.again_at if state.slow is not None and state.slow.probed is not None else 0.0
    return max(apart, earned, again)


def disturbs(state: RecoveryState, obs: Observation) -> bool:
    """Check whether the newest iteration may be long because ranks stood still."""
    probe = state.probe
    is_on = probe is not None and probe.phase != "Prepare" and probe.generation == obs.generation
    return is_on or 0 <= obs.now - state.pauses.last_at < AFTER_SECONDS


def _begun(state: RecoveryState, obs: Observation) -> RecoveryState:
    slow = state.slow
    assert slow is not None  # there is no hindrance
    number = state.pauses.probes + 1
    probed = slow.probed or Probed()
    probe = Probe(
        number=number,
        generation=obs.generation,
        incident=slow.id,
        phase="Prepare",
        since=obs.now,
        lead_seconds=probed.lead_seconds or LEAD_SECONDS,
    )
    slow = replace(slow, probed=replace(probed, tries=probed.tries + 1))
    return replace(state, slow=slow, probe=probe, pauses=replace(state.pauses, probes=number))


def _reports(probe: Probe, obs: Observation) -> dict[int, ProbeReport]:
    """Return the pods' answers to this probe, by replica."""
    return {replica: seen.report for replica, seen in obs.probes.items() if seen.report.number == probe.number}


# -- prepare ----------------------------------------------------------------------------------------------------------


def _prepared(state: RecoveryState, probe: Probe, obs: Observation, policy: Policy) -> RecoveryState:
    """Order the ranks to stop, once the executors wait in all pods and every rank's iterations are known."""
    seen = {replica: each for replica, each in sorted(obs.probes.items()) if each.report.number == probe.number}
    reported = [Reported(start, each.age_seconds) for each in seen.values() for start in each.report.ranks]
    awaited = _awaited(seen, len(reported), obs, policy)
    if awaited:
        return _failed(state, probe, obs, awaited) if obs.now - probe.since > PREPARE_SECONDS else state
    seconds = (obs.iteration_ns(policy.consecutive) or 0.0) / 1e9
    try:
        where = _stops(probe, reported, seconds, policy)
    except DisagreementError as why:
        return _failed(state, probe, obs, str(why))
    ring = [
        RingSeat(replica=replica, address=each.address, port=each.report.links.port) for replica, each in seen.items()
    ]
    held = replace(
        probe,
        phase="Hold",
        since=obs.now,
        held_at=obs.now,
        iteration_seconds=seconds,
        token=obs.nonce,
        ring=ring,
        stops=where,
    )
    return replace(state, probe=held)


def _awaited(seen: Mapping[int, ProbeSeen], ranks: int, obs: Observation, policy: Policy) -> str:
    """Return what is still missing before ranks can get their order; "" if nothing is."""
    late = next((each.pod_name for each in obs.members if each.replica not in seen), "")
    if late:
        return f"pod {late} has not answered"
    are_ready = all(each.address and each.report.links.port > 0 for each in seen.values())
    return "" if are_ready and ranks >= policy.world_size else "not all pods were ready in time"


def _stops(probe: Probe, reported: Sequence[Reported], iteration_seconds: float, policy: Policy) -> dict[int, int]:
    """Return where each rank is to stop. Raises DisagreementError where that is not known."""
    if not iteration_seconds:
        raise DisagreementError("the iteration time is not known")
    return stops(
        reported,
        policy.world_size,
        policy.layout,
        lead_seconds=probe.lead_seconds,
        iteration_seconds=_SPEED_UP * iteration_seconds,
    )


def arrive_seconds(probe: Probe) -> float:
    """Return the time from the order until which all ranks have to stand at the cut."""
    return probe.lead_seconds + 3 * probe.iteration_seconds + ARRIVE_SECONDS


def deadline_seconds(probe: Probe) -> float:
    """Return the time from the order at which every gate opens."""
    turns = len(ring_passes([seat.replica for seat in probe.ring])) if probe.ring else 0
    return arrive_seconds(probe) + turns * PAUSE_TURN_SECONDS + PAUSE_UNENDED_SECONDS


def links_order(probe: Probe) -> LinksOrder:
    """Return what the pods are to measure while their ranks stand still."""
    ring = [(seat.replica, seat.address, seat.port) for seat in probe.ring]
    return LinksOrder(number=probe.number, token=probe.token, milliseconds=TRANSFER_MS, ring=ring)


# -- hold -------------------------------------------------------------------------------------------------------------


def _measured(state: RecoveryState, probe: Probe, obs: Observation) -> RecoveryState:
    """Take the verdict over, once all pods have measured."""
    reports = _reports(probe, obs)
    over = [replica for replica, report in reports.items() if report.held and report.links.over]
    if len(over) < len(obs.members):
        late = obs.now - probe.since > deadline_seconds(probe) + URGENT_SECONDS
        return _failed(state, probe, obs, "not all pods have measured in time") if late else state
    tested = [Tested(each.replica, each.pod_name, each.node, reports[each.replica].links) for each in obs.members]
    machines, links = judge_links(tested, ())
    slow = state.slow
    assert slow is not None  # the probe is for it
    assert slow.link is not None
    probed, link = _verdict(slow, slow.link, machines, links, obs)
    slow = replace(slow, probed=probed, link=link, outlook=None)
    return replace(state, slow=slow, probe=_release(probe, obs))


def _verdict(
    slow: SlowIncident, link: SlowLink, machines: Sequence[SlowMachine], links: LinksFound, obs: Observation
) -> tuple[Probed, SlowLink]:
    """Return what was found, and the link with its ends where they are known now."""
    probed = replace(slow.probed or Probed(), at=obs.now, found="", text="", standstill_seconds=0.0)
    if machines:
        found = replace(probed, found="Machine", text=machines[0].text)
        return found, replace(link, node=obs.members[machines[0].replica].node)
    if links.slow:
        slowest = links.slow[0]
        pair = [place for name in slowest.pod_names if (place := _place(name, obs)) is not None]
        return replace(probed, found="Link", text=slowest.text), replace(link, pair=pair)
    again = replace(probed, again_at=obs.now + AGAIN_SECONDS)
    if links.measured < links.wanted or not links.measured:
        why = f": {links.why_missing[0]}" if links.why_missing else ""
        return replace(again, text=f"{links.measured} of {links.wanted} links could be measured{why}"), link
    return replace(again, found="Alike", text=f"none of the {links.measured} links is far below its peers"), link


def _place(pod_name: str, obs: Observation) -> Place | None:
    """Return the place of a pod's first rank."""
    member = next(member for member in obs.members if member.pod_name == pod_name)
    rank = min((rank.rank for rank in obs.ranks if rank.replica == member.replica), default=None)
    return None if rank is None else Place(rank=rank, pod_name=pod_name, node=member.node)


def _failed(state: RecoveryState, probe: Probe, obs: Observation, why: str, *, passed: bool = False) -> RecoveryState:
    """Let training go on without a verdict."""
    slow = state.slow
    if slow is not None and slow.id == probe.incident:
        lead = min(LONGEST_LEAD_SECONDS, 2 * probe.lead_seconds) if passed else probe.lead_seconds
        probed = replace(
            slow.probed or Probed(),
            at=obs.now,
            found="",
            text=why,
            lead_seconds=lead,
            again_at=obs.now + APART_SECONDS,
            standstill_seconds=0.0,
        )
        state = replace(state, slow=replace(slow, probed=probed))
    return replace(state, probe=_release(probe, obs))


# -- release ----------------------------------------------------------------------------------------------------------


def _release(probe: Probe, obs: Observation) -> Probe:
    return replace(probe, phase="Release", since=obs.now)


def _released(state: RecoveryState, probe: Probe, obs: Observation) -> RecoveryState:
    """Wait until all pods have opened, and count for how long they stood still."""
    reports = _reports(probe, obs)
    all_open = len(reports) == len(obs.members) and all(report.is_open for report in reports.values())
    if not all_open and obs.now - probe.since <= RELEASE_SECONDS:
        return state
    return replace(_ended(state, probe, obs), probe=None)


def _ended(state: RecoveryState, probe: Probe, obs: Observation) -> RecoveryState:
    """Count the pause, if ranks stood still, and note it with its incident."""
    if not probe.held_at:
        return state
    reports = _reports(probe, obs)
    held = max((report.held_ms for report in reports.values()), default=0) / 1e3
    if not reports:  # another generation has begun: at most from the order on
        held = min(obs.now - probe.held_at, deadline_seconds(probe))
    if not held:
        return state
    before = state.pauses
    pauses = Pauses(
        since=before.since,
        probes=before.probes,
        count=before.count + 1,
        seconds=before.seconds + held,
        longest_seconds=max(before.longest_seconds, held),
        last_at=obs.now,
    )
    state, slow = replace(state, pauses=pauses), state.slow
    if slow is None or slow.id != probe.incident or slow.probed is None:
        return state
    return replace(state, slow=replace(slow, probed=replace(slow.probed, standstill_seconds=held)))
