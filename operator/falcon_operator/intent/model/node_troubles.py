"""Read hardware troubles from node conditions: node-problem-detector's, NVSentinel's, and Falcon's own.

A condition that is True means trouble if its words belong to a class of hardware; of all others nothing is concluded.
Falcon's own conditions (``falcon-agent node``) name their class in ``reason``. Monitors differ in which part says what
is wrong, so that the names are read as words, too ("XfsHasShutDown": "Xfs Has Shut Down").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from falcon_core.errors.judge import Judge
from falcon_core.errors.table import Domain, ErrorClass
from falcon_core.model import CPU_BUSY_CONDITION, Severity
from falcon_core.recovery import NodeTrouble
from falcon_operator.base.ports import NodeReport, NodeView

OWN_PREFIX = "Falcon"  # of the types of Falcon's own conditions
STALE_SECONDS: Final = 720.0  # the node's agent repeats its conditions each five minutes
_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # begin of a word in a CamelCase name
_XID: Final = re.compile(r"(s?xid)", re.IGNORECASE)  # in the type of NVSentinel's conditions
_READINESS: Final = frozenset({"LostConnection"})  # which the node's own readiness tells, and better
_CODE: Final = re.compile(r"\bErrorCode: ?(\d+)")  # in their messages


def node_trouble(node: NodeView | None, judge: Judge) -> NodeTrouble | None:
    """Return the gravest trouble that a node reports; None for none, and for a node that is not known."""
    if node is None or not node.reports:
        return None
    found = [(known, report) for report in node.reports if (known := _class_of(report, judge)) is not None]
    if not found:
        return None
    # The condition's name decides between equal severities, so that two looks name the same one.
    known, report = min(found, key=lambda each: (each[0].severity, each[1].type))
    said = report.message or report.reason
    return NodeTrouble(
        error_class=known.name,
        text=f"{known.name} (condition {report.type}{f': {said}' if said else ''})",
        grave=known.severity is Severity.SEV1,
        slows=known.severity is Severity.SEV1 and known.domain is not Domain.LINK,
    )


def who_is_busy(node: NodeView | None, now: float) -> str:
    """Return who uses the cores of a node without an idle core, by its daemon's report; empty without a fresh report.

    ``now``: unix seconds. Where the node's agent was taken away, its last word stays.
    """
    for report in node.reports if node is not None else ():
        if report.type == CPU_BUSY_CONDITION and now - report.said_unix <= STALE_SECONDS:
            return report.message
    return ""


def grave_troubles(nodes: Mapping[str, NodeView], judge: Judge) -> dict[str, str]:
    """Return the nodes that are not to be used for what they report, with the trouble in words."""
    found = {name: node_trouble(node, judge) for name, node in nodes.items() if node.reports}
    return {name: trouble.text for name, trouble in found.items() if trouble is not None and trouble.grave}


def _class_of(report: NodeReport, judge: Judge) -> ErrorClass | None:
    if report.type.startswith(OWN_PREFIX):
        known = judge.get(report.reason)
        return known if known is not None and known.blames_hardware else None
    # The first text that a class of hardware fits decides; the later ones say less.
    for text in _texts(report):
        finding = judge.report(text) if text else None
        if finding is not None and finding.error_class.blames_hardware and finding.name not in _READINESS:
            return finding.error_class
    known = judge.get(report.type)
    return known if known is not None and known.blames_hardware else None


def _texts(report: NodeReport) -> tuple[str, str, str]:
    """Return what a condition says, the most telling first: the code of an Xid, all of it, the words of its type."""
    kind, code = _XID.search(report.type), _CODE.search(report.message)
    xid = f"{kind[1]} {code[1]}" if kind is not None and code is not None else ""
    whole = ": ".join(part for part in (report.type, report.reason, report.message) if part)
    return xid, f"{whole}\n{_WORD.sub(' ', report.reason)}", "" if xid else _WORD.sub(" ", report.type)
