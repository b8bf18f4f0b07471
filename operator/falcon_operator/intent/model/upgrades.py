"""Bring a decoded ``TrainingRun.spec`` from one version of the layout to the next (``layout``).

Each function works on plain values, and knows the two forms between which it stands. What it does not expect it leaves
as it is: the lenient decoder names it then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_LISTED = ("slow", "beside", "linkBeside")
# Of version 3, by part: the field of version 2 → the field of the part.
_OF_SLOWDOWN = {
    "onset": {
        "onsetAt": "at",
        "onsetGeneration": "generation",
        "onsetIteration": "iteration",
        "reportedIteration": "reportedIteration",
        "quietIteration": "quietIteration",
        "fromStart": "fromStart",
        "withoutOnset": "unreported",
    },
    "times": {name: name for name in ("healthyNs", "slowNs", "namedNs", "peakNs", "commonNs")},
    "nodeFault": {name: name for name in ("evidence", "stayIterations")},
    "restart": {name: name for name in ("switchedAt", "replacedBy", "trainedAt")},
}
_OF_RECOVERY = {
    "levels": {
        "healthyNs": "healthyNs",
        "level": "settled",
        "change": "change",
        "otherWork": "otherWork",
        "phases": "phases",
    },
    "suspicions": {
        "sinceStart": "sinceStart",
        "compared": "compared",
        "grown": "grown",
        "suspect": "suspect",
        "madeBeside": "standbysIteration",
    },
    "habits": {name: name for name in ("spells", "relieved", "stays", "durations", "slowPairs")},
}


def with_one_list_of_slowdowns(spec: dict[str, Any]) -> dict[str, Any]:
    """Return version 2 of a spec: open slowdowns are one list, and what is slow is one field of a slowdown.

    Before, the leading slowdown, those of further nodes and that of a concurrent link stood in three fields.
    """
    spec = dict(spec)
    recovery = spec.get("recovery")
    if isinstance(recovery, dict):
        slow, further, link = (recovery.get(name) for name in _LISTED)
        found = [slow, *(further if isinstance(further, list) else []), link]
        rest = {name: value for name, value in recovery.items() if name not in _LISTED}
        listed = [_with_subject(each) for each in found if each is not None]
        spec["recovery"] = rest | ({"slowdowns": listed} if listed else {})
    return _with_each_closed(spec, _with_subject)


def _with_each_closed(spec: dict[str, Any], upgrade: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a spec in which each slowdown of the history is upgraded."""
    history = spec.get("history")
    if not isinstance(history, list):
        return spec
    has_slow = [isinstance(each, dict) and each.get("slow") is not None for each in history]
    found = zip(history, has_slow, strict=True)
    return spec | {"history": [each | {"slow": upgrade(each["slow"])} if slow else each for each, slow in found]}


def _with_subject(slow: Any) -> Any:
    """Return a slowdown whose culprit or link is its subject, with the kind that it is of."""
    if not isinstance(slow, dict):
        return slow
    result = {name: value for name, value in slow.items() if name not in ("culprit", "link")}
    if isinstance(slow.get("usual"), dict):
        result["usual"] = slow["usual"] | {"kind": "Rank"}
    if isinstance(slow.get("culprit"), dict):
        return result | {"subject": slow["culprit"] | {"kind": "Rank"}}
    if isinstance(slow.get("link"), dict):
        # A link that was only suspected stood in the same field as one that is known.
        kind = "Group" if slow.get("phase") == "Suspected" else "Link"
        return result | {"subject": slow["link"] | {"kind": kind}}
    return result


def with_parts(spec: dict[str, Any]) -> dict[str, Any]:
    """Return version 3 of a spec: a slowdown and the recovery's state have parts instead of 33 fields each.

    A fault does not say its component any more, which its cause implies.
    """
    spec = _with_each_fault(spec)
    recovery = spec.get("recovery")
    if isinstance(recovery, dict):
        recovery = _in_parts(recovery, _OF_RECOVERY)
        if isinstance(recovery.get("slowdowns"), list):
            recovery["slowdowns"] = [_in_parts(slow, _OF_SLOWDOWN) for slow in recovery["slowdowns"]]
        spec["recovery"] = recovery
    return _with_each_closed(spec, lambda slow: _in_parts(slow, _OF_SLOWDOWN))


def _with_each_fault(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a spec whose open and closed failures have faults without a component."""
    spec = dict(spec)
    if isinstance(spec.get("recovery"), dict):
        spec["recovery"] = _without_component(spec["recovery"])
    if isinstance(spec.get("history"), list):
        spec["history"] = [_without_component(each) for each in spec["history"]]
    return spec


def _without_component(holder: Any) -> Any:
    """Return an object whose ``stop.fault`` has no component."""
    stop = holder.get("stop") if isinstance(holder, dict) else None
    fault = stop.get("fault") if isinstance(stop, dict) else None
    if not isinstance(stop, dict) or not isinstance(fault, dict):
        return holder
    kept = {name: value for name, value in fault.items() if name != "component"}
    return holder | {"stop": stop | {"fault": kept}}


def with_peers(spec: dict[str, Any]) -> dict[str, Any]:
    """Return version 4 of a spec: what a culprit's peers did is a part of it."""
    recovery = spec.get("recovery")
    if isinstance(recovery, dict) and isinstance(recovery.get("slowdowns"), list):
        slowdowns = [_with_peers(slow) for slow in recovery["slowdowns"]]
        spec = spec | {"recovery": recovery | {"slowdowns": slowdowns}}
    return _with_each_closed(spec, _with_peers)


def _with_peers(slow: Any) -> Any:
    """Return a slowdown whose culprits have their peers' wait in a part."""
    if not isinstance(slow, dict):
        return slow
    parts = {"peers": {"peersWaitNs": "waitNs"}}
    return slow | {name: _in_parts(slow[name], parts) for name in ("subject", "usual") if name in slow}


def _in_parts(value: Any, parts: dict[str, dict[str, str]]) -> Any:
    """Return an object whose fields stand in parts; a part without any field is left out."""
    if not isinstance(value, dict):
        return value
    moved = {name for names in parts.values() for name in names}
    result = {name: field for name, field in value.items() if name not in moved}
    for part, names in parts.items():
        if found := {new: value[old] for old, new in names.items() if old in value}:
            result[part] = found
    return result
