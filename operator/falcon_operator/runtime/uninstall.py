"""Remove from all nodes what Falcon has written there: ``python -m falcon_operator.runtime.uninstall``.

The chart runs it after ``helm uninstall``. Operator and node agents may be ending at that time, so the nodes are looked
at until nothing has come back for a while. Jobs train on, and an operator that is installed again writes it again.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import structlog

from falcon_core.model import CPU_BUSY_CONDITION
from falcon_operator.api.common import GROUP
from falcon_operator.base import logs, spare_annotations
from falcon_operator.base.ports import Conflict, NotFound, Rejected
from falcon_operator.cluster.transport import MERGE_PATCH, STRATEGIC_PATCH, Transport, load_configuration, path_of

PAUSE_SECONDS: Final = 3.0
QUIET_LOOKS: Final = 4  # in a row that found nothing
MOST_LOOKS: Final = 30
PAGE: Final = "200"
CONDITIONS: Final = (CPU_BUSY_CONDITION,)  # that the node agent writes
log = structlog.get_logger("falcon_operator")


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct, frozen=True):
    taints: list[dict[str, Any]] | None = None


class _Condition(msgspec.Struct, frozen=True):
    type: str


class _Status(msgspec.Struct, frozen=True):
    conditions: list[_Condition] | None = None


class Node(msgspec.Struct, frozen=True):
    """What is read of a node: a page of whole ones would take more memory than the container has."""

    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _Page(msgspec.Struct, frozen=True):
    items: list[Node]
    metadata: _Metadata = _Metadata()


_page = msgspec.json.Decoder(_Page)


def left_taints(node: Node) -> list[dict[str, Any]] | None:
    """Return the node's taints without Falcon's; None where it has none of these."""
    taints = node.spec.taints or []
    left = [taint for taint in taints if not taint["key"].startswith(f"{GROUP}/")]
    return left if left != taints else None


def own_annotations(node: Node) -> dict[str, str | None]:
    """Return the change that removes what the operator has set on a spare; empty where it has set nothing."""
    return spare_annotations.changes(node.metadata.annotations or {}, spare_annotations.NONE)


def own_conditions(node: Node) -> list[str]:
    """Return the types of the node's conditions that the node agent has written."""
    return [condition.type for condition in node.status.conditions or [] if condition.type in CONDITIONS]


async def clean(http: Transport) -> int:
    """Clean all nodes once. Return how many nodes had something of Falcon's. Raises OSError, Rejected."""
    found, token = 0, ""
    while True:
        query = {"limit": PAGE, **({"continue": token} if token else {})}
        page = _page.decode(await http.call("GET", path_of("v1", "nodes"), query=query))
        for node in page.items:
            found += await _clean_node(http, node)
        token = page.metadata.continue_
        if not token:
            return found


async def _clean_node(http: Transport, node: Node) -> bool:
    meta = node.metadata
    taints, annotations, conditions = left_taints(node), own_annotations(node), own_conditions(node)
    marked = taints is not None or bool(annotations)
    try:
        if conditions:  # the next look finds taints and annotations
            # By their types, so that what a kubelet writes meanwhile stays.
            change = [{"type": type_, "$patch": "delete"} for type_ in conditions]
            path = path_of("v1", "nodes", name=meta.name, subresource="status")
            await http.call("PATCH", path, body={"status": {"conditions": change}}, content_type=STRATEGIC_PATCH)
        elif marked:
            # Taints are one list that others write too: it is written over the version that was read.
            body: dict[str, Any] = {"metadata": {"resourceVersion": meta.resource_version, "annotations": annotations}}
            if taints is not None:
                body["spec"] = {"taints": taints or None}
            await http.call("PATCH", path_of("v1", "nodes", name=meta.name), body=body, content_type=MERGE_PATCH)
    except (Conflict, NotFound):
        return True  # the next look reads the node again
    has_ours = bool(conditions) or marked
    if has_ours:
        log.info("node cleaned", node=meta.name)
    return has_ours


async def another_release(http: Transport, selector: str) -> bool:
    """Check whether a release that ``selector`` selects is installed: the nodes are then that release's."""
    query = {"labelSelector": selector, "limit": "1"}
    path = path_of("rbac.authorization.k8s.io/v1", "clusterroles")
    return bool(msgspec.json.decode(await http.call("GET", path, query=query))["items"])


async def uninstall(selector: str, pause_seconds: float = PAUSE_SECONDS) -> bool:
    """Clean the nodes until nothing comes back. Return whether that was reached. Raises OSError, Rejected."""
    http = Transport(await load_configuration(), lambda: None)
    try:
        if selector and await another_release(http, selector):
            log.info("another release looks after the nodes")
            return True
        quiet = 0
        for _ in range(MOST_LOOKS):
            quiet = 0 if await clean(http) else quiet + 1
            if quiet == QUIET_LOOKS:
                return True
            await asyncio.sleep(pause_seconds)
        return False
    finally:
        await http.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line. Return the exit code: 1 where something failed or keeps coming back."""
    parser = argparse.ArgumentParser(prog="uninstall", description="Remove from all nodes what Falcon has written.")
    parser.add_argument(
        "--unless", default="", metavar="LABELS", help="do nothing where a ClusterRole has these labels"
    )
    selector = parser.parse_args(arguments).unless
    logs.configure("info")
    try:
        done = asyncio.run(uninstall(selector))
    except (OSError, Rejected) as error:
        log.error("nodes not cleaned", error=str(error))
        return 1
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
