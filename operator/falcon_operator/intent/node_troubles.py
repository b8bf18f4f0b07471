"""What nodes report of their own hardware, as conditions: node-problem-detector's, NVSentinel's, and Falcon's own.

A condition that is True means trouble if its words belong to a class of hardware; of all others nothing is concluded.
Falcon's own conditions (``falcon-agent node``) name their class in ``reason``.
"""

from __future__ import annotations

from collections.abc import Mapping

from falcon_core.errors.judge import Judge
from falcon_core.errors.table import Domain, ErrorClass, Source
from falcon_core.model import Severity
from falcon_core.recovery.observation import NodeTrouble
from falcon_operator.ports import NodeReport, NodeView

OWN_PREFIX = "Falcon"  # of the types of Falcon's own conditions


def node_trouble(node: NodeView | None, judge: Judge) -> NodeTrouble | None:
    """Return the gravest trouble that a node reports; None for none, and for a node that is not known."""
    if node is None or not node.reports:
        return None
    found = [(known, report) for report in node.reports if (known := _class_of(report, judge)) is not None]
    if not found:
        return None
    known, report = min(found, key=lambda each: (each[0].severity, each[1].type))
    said = report.message or report.reason
    return NodeTrouble(
        error_class=known.name,
        text=f"{known.name} (condition {report.type}{f': {said}' if said else ''})",
        grave=known.severity is Severity.SEV1,
        slows=known.severity is Severity.SEV1 and known.domain is not Domain.LINK,
    )


def grave_troubles(nodes: Mapping[str, NodeView], judge: Judge) -> dict[str, str]:
    """Return the nodes that are not to be used for what they report, with the trouble in words."""
    found = {name: node_trouble(node, judge) for name, node in nodes.items() if node.reports}
    return {name: trouble.text for name, trouble in found.items() if trouble is not None and trouble.grave}


def _class_of(report: NodeReport, judge: Judge) -> ErrorClass | None:
    if report.type.startswith(OWN_PREFIX):
        known = judge.get(report.reason)
    else:
        line = ": ".join(part for part in (report.type, report.reason, report.message) if part)
        finding = judge.classifier.line(line, Source.CONDITION)
        known = finding.error_class if finding is not None else None
    return known if known is not None and known.of_hardware and not (known.consequence or known.vague) else None
