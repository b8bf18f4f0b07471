"""Remove what a release leaves behind: ``python -m falcon_operator.runtime.uninstall``.

That is what Falcon has written on nodes, and in the release's namespace the pods that test nodes and those of ``helm
test``. The chart runs it after ``helm uninstall``. Operator and node agents may be ending at that time, so it looks
until nothing has come back for a while. Jobs train on, and an operator that is installed again makes it again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from falcon_core.model import CPU_BUSY_CONDITION
from falcon_operator.api.common import GROUP, LABEL_ROLE
from falcon_operator.base import logs, spare_annotations
from falcon_operator.base.ports import Conflict, NotFound, Rejected
from falcon_operator.cluster.transport import MERGE_PATCH, STRATEGIC_PATCH, Transport, load_configuration, path_of
from falcon_operator.manifests.burn_in import ROLE_BURN_IN

PAUSE_SECONDS: Final = 3.0
QUIET_LOOKS: Final = 4  # in a row that found nothing
MOST_LOOKS: Final = 30
PAGE: Final = "200"
CONDITIONS: Final = (CPU_BUSY_CONDITION,)  # that the node agent writes
log = structlog.get_logger("falcon_operator")


class Pods(NamedTuple):
    """Where the pods are that are deleted, and the labels of those of ``helm test``."""

    namespace: str
    of_helm_test: str


class _Owner(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    deletion_timestamp: str = ""
    owner_references: list[_Owner] = []
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


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Metadata

    @property
    def of_pool(self) -> bool:
        owners = self.metadata.owner_references
        return any(owner.api_version.startswith(f"{GROUP}/") and owner.kind == "WarmPool" for owner in owners)


class _Pods(msgspec.Struct, frozen=True):
    items: list[_Pod]
    metadata: _Metadata = _Metadata()


class _Page(msgspec.Struct, frozen=True):
    items: list[Node]
    metadata: _Metadata = _Metadata()


_page = msgspec.json.Decoder(_Page)
_pods = msgspec.json.Decoder(_Pods)


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


async def delete_pods(http: Transport, namespace: str, selector: str, *, of_pools: bool) -> int:
    """Delete once the namespace's pods that ``selector`` selects. Return how many there were.

    ``of_pools``: only those that a WarmPool owns, since labels can be anybody's. A pod that is being deleted already
    does not count: on a dead node it stays for long. Raises OSError, Rejected.
    """
    names = [
        pod.metadata.name
        async for pod in _pods_of(http, namespace, selector)
        if not pod.metadata.deletion_timestamp and (pod.of_pool or not of_pools)
    ]
    for name in names:
        with contextlib.suppress(NotFound):
            await http.call("DELETE", path_of("v1", "pods", namespace, name))
            log.info("pod deleted", pod=name)
    return len(names)


async def _pods_of(http: Transport, namespace: str, selector: str) -> AsyncIterator[_Pod]:
    token = ""
    while True:
        query = {"limit": PAGE, "labelSelector": selector, **({"continue": token} if token else {})}
        page = _pods.decode(await http.call("GET", path_of("v1", "pods", namespace), query=query))
        for pod in page.items:
            yield pod
        token = page.metadata.continue_
        if not token:
            return


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


async def uninstall(selector: str, pods: Pods, pause_seconds: float = PAUSE_SECONDS) -> bool:
    """Clean the nodes and delete ``pods`` until nothing comes back. Return whether that was reached.

    ``selector``: of ClusterRoles. Where one has these labels, another release looks after the nodes. Raises OSError,
    Rejected.
    """
    http = Transport(await load_configuration(), lambda: None)
    try:
        others = bool(selector) and await another_release(http, selector)
        if others:
            log.info("another release looks after the nodes")
        quiet = 0
        for _ in range(MOST_LOOKS):
            found = await delete_pods(http, pods.namespace, f"{LABEL_ROLE}={ROLE_BURN_IN}", of_pools=True)
            found += await delete_pods(http, pods.namespace, pods.of_helm_test, of_pools=False)
            if not others:
                found += await clean(http)
            quiet = 0 if found else quiet + 1
            if quiet == QUIET_LOOKS:
                return True
            await asyncio.sleep(pause_seconds)
        return False
    finally:
        await http.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line. Return the exit code: 1 where something failed or keeps coming back."""
    parser = argparse.ArgumentParser(prog="uninstall", description="Remove what a release leaves behind.")
    parser.add_argument(
        "--unless", default="", metavar="LABELS", help="leave the nodes where a ClusterRole has these labels"
    )
    parser.add_argument("--namespace", required=True, help="of the release")
    parser.add_argument("--tests", required=True, metavar="LABELS", help="of the pods of helm test")
    options = parser.parse_args(arguments)
    logs.configure("info")
    try:
        done = asyncio.run(uninstall(options.unless, Pods(options.namespace, options.tests)))
    except (OSError, Rejected) as error:
        log.error("something of the release is left", error=str(error))
        return 1
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
