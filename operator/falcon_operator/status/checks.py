"""Describe what the check of the machines before the start has found: the condition ``MachinesChecked``."""

from __future__ import annotations

from falcon_core.recovery.preflight.link_test import LinksFound, SlowPair
from falcon_core.recovery.preflight.machine_test import Preflight
from falcon_operator.intent.placement.preflight import reason
from falcon_operator.status.conditions import Finding
from falcon_operator.status.text.format import listed
from falcon_operator.status.view import View

TYPE = "MachinesChecked"


def machines_checked(view: View) -> Finding:
    """Build the finding on the newest complete check of all machines."""
    mode, state = view.snap.job.spec.preflight.mode, view.intent.preflight
    if mode == "Off":
        return Finding(TYPE, None, "NotWanted", "spec.preflight.mode is Off", quiet=True)
    if not state.checked:
        return Finding(TYPE, None, "NotYet", "no check of the machines is complete yet", quiet=True)
    count = state.checked
    bad = [each for each in state.found if each.is_certain]
    if bad:
        # A bad machine that stays is a risk for the job, so the sentence says what follows for it.
        left = {exclusion.node for exclusion in view.intent.membership.exclusions}
        stay = [each for each in bad if each.node not in left]
        words = listed([f"node {each.node} ({each.pod_name}): {reason(each)}" for each in bad])
        return Finding(TYPE, False, "BadMachine", f"{words}; {_what_follows(view, bool(stay))}", shown=True)
    if state.missing:
        message = f"{state.missing} of {count} machines gave no result: {listed(state.why_missing)}"
        return Finding(TYPE, None, "Incomplete", message)
    return _of_good_machines(state)


def _of_good_machines(state: Preflight) -> Finding:
    """Build the finding where no machine is bad: on their links, and on what was compared with nothing."""
    slow = [each for each in state.links.slow if each.is_certain]
    if slow:
        return Finding(TYPE, False, "SlowLink", _slow_links(slow), shown=True)
    count = state.checked
    if not state.compared:
        message = f"no two of the {count} machines have the same devices, so Falcon cannot compare their results"
        return Finding(TYPE, None, "NotCompared", message)
    alike = f"the {count} machines were equally fast before the ranks started"
    if state.links.measured < state.links.wanted:
        return Finding(TYPE, None, "LinksUnknown", f"{alike}; {_unknown_links(state.links)}")
    return Finding(TYPE, True, "AllAlike", f"{alike}{_links(count, state.links)}")


def _links(count: int, links: LinksFound) -> str:
    if links.wanted:
        return f", and so were their {links.measured} links in bandwidth and latency"
    return "; their one link was not measured, since there is no other link to compare it with" if count == 2 else ""


def _slow_links(slow: list[SlowPair]) -> str:
    words = listed([f"{_ends(each)}: {each.text}" for each in slow])
    return (
        f"slow in the check before the start: {words}; no machine is evicted from the job for it, since either end may"
        " be at fault, or what lies between: check the switches and cables of the two"
    )


def _ends(pair: SlowPair) -> str:
    first, second = (f"{node} ({pod})" for node, pod in zip(pair.nodes, pair.pod_names, strict=True))
    return f"the link of nodes {first} and {second}"


def _unknown_links(links: LinksFound) -> str:
    unknown = links.wanted - links.measured
    return (
        f"{unknown} of the {links.wanted} links between them could not be measured: {listed(links.why_missing)}. The"
        " pods of a job have to reach each other on all TCP ports, as its ranks do: check for a NetworkPolicy or a"
        " firewall"
    )


def _what_follows(view: View, stays: bool) -> str:
    if not stays:
        return "it was evicted from the job"
    if view.snap.job.spec.preflight.mode == "Report":
        return "the job starts there nevertheless, since spec.preflight.mode is Report"
    spares = view.obs.spares
    return f"the job starts there nevertheless: {spares.message or 'no ready spare of a warm pool'}"
