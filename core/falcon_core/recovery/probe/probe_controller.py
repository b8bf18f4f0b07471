"""Measure machines and links while training stands still (FALCON §4.3).

``probe_targets`` decides what is measured and when that is allowed; ``probe_verdicts`` judges the results.

One probe at a time: the pods start their executors while training goes on (``Prepare``); all ranks stop at one
iteration's start, each pod measures as soon as its own ranks stand (``Hold``), and training goes on when all have
measured (``Release``).

An order is stored with the state before it is sent, so that an operator that dies at any moment sends the same order
again. Training goes on after any error: every pod opens its gates by itself (``wire.measurement.probe``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from falcon_core.recovery.model.observation import Look, Observation, ProbeSeen
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.probe import Pauses, Probe, Probed, RingSeat
from falcon_core.recovery.model.slowdown import detected
from falcon_core.recovery.model.state import RecoveryState, numbered, with_changed
from falcon_core.recovery.preflight.link_test import TRANSFER_MS
from falcon_core.recovery.preflight.machine_test import Machine
from falcon_core.recovery.probe import probe_targets, probe_verdicts, user_check
from falcon_core.recovery.probe.cut import DisagreementError
from falcon_core.recovery.probe.stop_targets import Reported, Stops, stops
from falcon_core.times import PAUSE_MACHINE_SECONDS, PAUSE_TURN_SECONDS, PAUSE_UNENDED_SECONDS, URGENT_SECONDS
from falcon_core.topology.passes import ring_passes
from falcon_core.wire.measurement.check import CheckReport
from falcon_core.wire.measurement.check_links import LinksOrder
from falcon_core.wire.measurement.probe import ProbeReport

PREPARE_SECONDS: Final = 20.0  # a Python process starts in each pod while training goes on
LEAD_SECONDS: Final = 0.5  # of training between the order and the cut: the way of the order
LONGEST_LEAD_SECONDS: Final = 8.0
ARRIVE_SECONDS: Final = 2.0  # beyond what training takes to the cut, until which all ranks stand there
SLOWER: Final = 3.0  # iterations may have become longer, which the newest reports do not show yet
RELEASE_SECONDS: Final = 10.0  # until which all pods say for how long they stood still
AFTER_SECONDS: Final = 5.0  # in which an iteration that was interrupted ends
MACHINE_MS: Final = 500  # of computing; periods of a CPU quota last 100
_SPEED_UP: Final = 0.8  # iterations may become shorter while the order is on its way
replace = msgspec.structs.replace


def step(state: RecoveryState, look: Look) -> RecoveryState:
    """Follow the probe that is on, or begin one; called at the end of each look."""
    if not state.pauses.since and look.obs.running and look.obs.iterations:
        state = replace(state, pauses=replace(state.pauses, since=look.obs.now))
    state = user_check.look(state, look)
    probe = state.probe
    if probe is None:
        target = probe_targets.wanted(state, look)
        return state if target is None else _begun_if_allowed(state, target, look)
    # An order belongs to one generation: when that ends, its ranks no longer stand still.
    if probe.generation != look.obs.generation or not look.obs.running:
        return replace(_ended(state, probe, look.obs), probe=None)
    if probe.phase == "Release":
        return _released(state, probe, look.obs)
    reports = _reports(probe, look.obs)
    # Training stands still or is about to: ask at each look whether the reason still holds.
    why = probe_targets.unwanted(probe, state, look) or _given_up(reports, look.obs)
    if why:
        return _failed(state, probe, look.obs, why, passed=any(report.passed for report in reports.values()))
    return _prepared(state, probe, look) if probe.phase == "Prepare" else _measured(state, probe, look)


def _given_up(reports: Mapping[int, ProbeReport], obs: Observation) -> str:
    """Return why a pod takes no part any more; "" if all do."""
    gone = next((f"the agent of pod {each.pod_name} is gone" for each in obs.members if each.alive is False), "")
    return next((report.why for report in reports.values() if report.why), gone)


def disturbs(state: RecoveryState, obs: Observation) -> bool:
    """Check whether the newest iteration may be long because ranks stood still."""
    probe = state.probe
    is_on = probe is not None and probe.phase != "Prepare" and probe.generation == obs.generation
    return is_on or 0 <= obs.now - state.pauses.last_at < AFTER_SECONDS


def _begun_if_allowed(state: RecoveryState, target: probe_targets.Target, look: Look) -> RecoveryState:
    """Begin a probe, if nothing is in its way."""
    if probe_targets.hindrance(target, state, look):
        return state
    slow = probe_targets.incident_of(state, target.incident) if target.incident else None
    if look.obs.now < probe_targets.allowed_at(state, slow, look.policy):
        return state
    # Answers are matched to a probe by its number, so no number is used twice in the job's life.
    number = state.pauses.probes + 1
    probed = (slow.probed if slow is not None else None) or Probed()
    check = state.check
    # An order that came too late for some rank doubled the lead of the next one.
    lead_seconds = probed.lead_seconds if target.incident or check is None else check.lead_seconds
    probe = Probe(
        number=number,
        generation=look.obs.generation,
        incident=target.incident,
        measures=target.measures,
        phase="Prepare",
        since=look.obs.now,
        lead_seconds=lead_seconds or LEAD_SECONDS,
    )
    if slow is not None:
        tried = replace(slow, probed=replace(probed, tries=probed.tries + 1))
        state = with_changed(state, slow, tried)
    else:
        state = user_check.begun(state)
    return replace(state, probe=probe, pauses=replace(state.pauses, probes=number))


def _reports(probe: Probe, obs: Observation) -> dict[int, ProbeReport]:
    """Return the pods' answers to this probe, by replica."""
    return {replica: seen.report for replica, seen in obs.probes.items() if seen.report.number == probe.number}


# -- prepare ----------------------------------------------------------------------------------------------------------


def _prepared(state: RecoveryState, probe: Probe, look: Look) -> RecoveryState:
    """Order the ranks to stop, once the executors wait in all pods and every rank's iterations are known."""
    seen = {replica: each for replica, each in sorted(look.obs.probes.items()) if each.report.number == probe.number}
    reported = [Reported(start, each.age_seconds) for each in seen.values() for start in each.report.ranks]
    # All ranks stop at one iteration's start, so a single rank that is not known prevents the pause.
    awaited = _awaited(seen, len(reported), look) or _unknown(reported)
    if awaited:
        return _failed(state, probe, look.obs, awaited) if look.obs.now - probe.since > PREPARE_SECONDS else state
    seconds = (look.obs.iteration_ns(look.policy.consecutive) or 0.0) / 1e9
    if probe.measures == "Machines" and any(each.start.on_device for each in reported):
        return _failed(state, probe, look.obs, "its ranks compute on GPUs, and while ranks run only CPUs are measured")
    try:
        where = _stops(probe, reported, seconds, look.policy)
    except DisagreementError as why:
        return _failed(state, probe, look.obs, str(why))
    # Only links need to know each other's addresses; machines are measured each by itself.
    ring = [
        RingSeat(replica=replica, address=each.address, port=each.report.links.port)
        for replica, each in seen.items()
        if probe.measures != "Machines"
    ]
    held = replace(
        probe,
        phase="Hold",
        since=look.obs.now,
        held_at=look.obs.now,
        iteration_seconds=seconds,
        token=look.obs.nonce,
        ring=ring,
        stops=where.iterations,
        calls_before=where.calls_before,
    )
    return replace(state, probe=held)


def _awaited(seen: Mapping[int, ProbeSeen], ranks: int, look: Look) -> str:
    """Return the reason why ranks cannot get their order yet; "" if there is none."""
    late = next((each.pod_name for each in look.obs.members if each.replica not in seen), "")
    if late:
        return f"pod {late} has not answered"
    are_ready = all(each.address and each.report.links.port > 0 for each in seen.values())
    return "" if are_ready and ranks >= look.policy.world_size else "not all pods were ready in time"


def _unknown(reported: Sequence[Reported]) -> str:
    """Return a rank whose device is not known to keep up, and why; "" if none. Timing all of its calls shows it."""
    starts = [each.start for each in reported]
    return next((f"rank {start.rank}: {start.why}" for start in starts if start.on_device and start.why), "")


def _stops(probe: Probe, reported: Sequence[Reported], iteration_seconds: float, policy: Policy) -> Stops:
    """Return the stop of each rank. Raises DisagreementError where it is not known."""
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
    return SLOWER * (probe.lead_seconds + probe.iteration_seconds) + ARRIVE_SECONDS


def deadline_seconds(probe: Probe) -> float:
    """Return the time from the order at which every gate opens."""
    turns = len(ring_passes([seat.replica for seat in probe.ring])) if probe.ring else 0
    machine = 0.0 if probe.measures == "Links" else PAUSE_MACHINE_SECONDS
    return arrive_seconds(probe) + machine + turns * PAUSE_TURN_SECONDS + PAUSE_UNENDED_SECONDS


def links_order(probe: Probe) -> LinksOrder:
    """Return the order of the measurements that the pods make while their ranks stand still."""
    ring = [(seat.replica, seat.address, seat.port) for seat in probe.ring]
    machine = 0 if probe.measures == "Links" else MACHINE_MS
    return LinksOrder(
        number=probe.number, token=probe.token, milliseconds=TRANSFER_MS, ring=ring, machine_milliseconds=machine
    )


# -- hold -------------------------------------------------------------------------------------------------------------


def _measured(state: RecoveryState, probe: Probe, look: Look) -> RecoveryState:
    """Take the verdict over, once all pods have measured."""
    reports = _reports(probe, look.obs)
    # A verdict compares machines, so it waits for all of them, but not beyond the deadline.
    over = [replica for replica, report in reports.items() if report.held and report.links.over]
    if len(over) < len(look.obs.members):
        late = look.obs.now - probe.since > deadline_seconds(probe) + URGENT_SECONDS
        return _failed(state, probe, look.obs, "not all pods have measured in time") if late else state
    machines = [
        Machine(replica=each.replica, pod_name=each.pod_name, node=each.node, report=_report(reports[each.replica]))
        for each in look.obs.members
    ]
    state = _judged(state, probe, machines, look)
    return replace(state, probe=_release(state.probe or probe, look.obs))


def _report(said: ProbeReport) -> CheckReport:
    """Return a pod's result of machine and links as one."""
    return replace(said.machine or CheckReport(said.number, why="not measured"), links=said.links)


def _judged(state: RecoveryState, probe: Probe, machines: Sequence[Machine], look: Look) -> RecoveryState:
    """Take over what the measurement has shown."""
    slow, check = probe_targets.incident_of(state, probe.incident), state.check
    if not probe.incident:
        assert check is not None  # the probe is for it
        return replace(state, check=user_check.done(check, *probe_verdicts.of_check(machines, look.obs), look.obs.now))
    assert slow is not None  # likewise
    if probe.measures == "Machines":
        assert slow.culprit is not None
        judged = replace(slow, probed=probe_verdicts.of_machine(slow, slow.culprit, machines, look.obs))
        return with_changed(state, slow, judged)
    # The link has its name already: the measurement tells its ends.
    if slow.link is not None and slow.is_incident:
        probed, known = probe_verdicts.of_links(slow, slow.link, machines, look.obs)
        found = probe_verdicts.with_link(slow, known, look.obs)
        return with_changed(state, slow, replace(found, probed=probed, outlook=None))
    probed, link = probe_verdicts.of_unnamed(slow, machines, look.obs)
    if link is None:
        return with_changed(state, slow, replace(slow, probed=probed))
    found = replace(detected(slow, link), probed=probed)
    state, found = numbered(state, found, look.policy)
    state = replace(state, probe=replace(probe, incident=found.id))
    return with_changed(state, slow, found)


def _failed(state: RecoveryState, probe: Probe, obs: Observation, why: str, *, passed: bool = False) -> RecoveryState:
    """Let training go on without a verdict."""
    slow, check = probe_targets.incident_of(state, probe.incident), state.check
    # Some rank had passed the cut before the order arrived. Give it more time at the next try.
    lead = min(LONGEST_LEAD_SECONDS, 2 * probe.lead_seconds) if passed else probe.lead_seconds
    if not probe.incident and check is not None:
        was_ordered = probe.phase == "Hold"
        failed = user_check.missed(check, why, obs.now, lead) if was_ordered else user_check.failed(check, why, obs.now)
        state = replace(state, check=failed)
    elif slow is not None:
        probed = replace(
            slow.probed or Probed(),
            at=obs.now,
            found="",
            node="",
            text=why,
            lead_seconds=lead,
            again_at=obs.now + probe_targets.APART_SECONDS,
            standstill_seconds=0.0,
        )
        state = with_changed(state, slow, replace(slow, probed=probed))
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
    # All ranks wait for the last one, so the longest standstill is the job's.
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
    state, slow = replace(state, pauses=pauses), probe_targets.incident_of(state, probe.incident)
    if not probe.incident and state.check is not None:
        return replace(state, check=replace(state.check, standstill_seconds=held))
    if slow is None or slow.probed is None:
        return state
    measured = replace(slow, probed=replace(slow.probed, standstill_seconds=held))
    return with_changed(state, slow, measured)
