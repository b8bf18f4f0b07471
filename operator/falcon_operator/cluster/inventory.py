"""Mirror the pods and nodes that the operator works with in memory.

A cluster has tens of thousands of them, and each look at a job or a pool reads many. So they are listed once and
watched from then on. One mirror holds all pods, or one for each namespace that the operator serves, its own included:
there the burn-in pods are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from falcon_operator.base.ports import NodeView, PodView, Unavailable
from falcon_operator.cluster import nodes, pods
from falcon_operator.cluster.cache.mirror import Item, Mirror
from falcon_operator.cluster.cache.reflector import Interruption, Reflector, Server, uncounted
from falcon_operator.cluster.nodes import Node
from falcon_operator.cluster.pods import PodMirror
from falcon_operator.cluster.transport import path_of


class Unsynced(Unavailable):
    """The error of a read before the first list: an object that is not known yet may well exist."""


class Inventory:
    """The mirrors, and the reflectors that keep them current while ``run`` runs.

    ``namespaces`` empty: all; ``node_item`` decodes a node.
    """

    def __init__(
        self,
        server: Server,
        namespaces: Sequence[str],
        on_interruption: Callable[[str, Interruption], None] = uncounted,
        node_item: Callable[[bytes | msgspec.Raw], Item[Node]] = nodes.item,
    ) -> None:
        self._on_pod: Callable[[PodView], None] = lambda _: None
        self._on_node: Callable[[str], None] = lambda _: None
        self._nodes: Mirror[Node] = Mirror(self._node_changed)
        self._named: Mapping[str, NodeView] = {}  # of the list in ``_named_from``
        self._named_from: list[Node] = []
        self._pods = {namespace: PodMirror(self._pod_changed) for namespace in namespaces or ("",)}
        self._node_reflector = Reflector(server, self._nodes, path_of("v1", "nodes"), node_item, None, on_interruption)
        selected = {"labelSelector": pods.SELECTOR}
        self._pod_reflectors = [
            Reflector(server, mirror, path_of("v1", "pods", namespace), pods.item, selected, on_interruption)
            for namespace, mirror in self._pods.items()
        ]

    async def run(self, on_pod: Callable[[PodView], None], on_node: Callable[[str], None]) -> None:
        """Keep pods and nodes current until cancelled; call ``on_pod`` and ``on_node`` for each change that shows."""
        self._on_pod, self._on_node = on_pod, on_node
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._node_reflector.run(), name="nodes")
            for reflector in self._pod_reflectors:
                tasks.create_task(reflector.run(), name="pods")

    async def synced(self) -> None:
        """Wait until everything has been listed once."""
        await self._node_reflector.synced()
        for reflector in self._pod_reflectors:
            await reflector.synced()

    @property
    def nodes(self) -> Mirror[Node]:
        """Return all nodes. Raises :class:`Unsynced` before they have been listed."""
        _check_synced(self._nodes, "nodes")
        return self._nodes

    def nodes_by_name(self) -> Mapping[str, NodeView]:
        """Return the nodes' views by name. Raises :class:`Unsynced`.

        The mapping is shared by all looks until a node changes: making it again for each would cost most of a look at a
        job in a large cluster.
        """
        listed = self.nodes.views()
        if self._named_from is not listed:
            self._named_from, self._named = listed, {node.view.name: node.view for node in listed}
        return self._named

    def pods_of(self, namespace: str) -> PodMirror:
        """Return the mirror that holds the namespace's pods. Raises :class:`Unsynced` before they have been listed."""
        mirror = self._pods[namespace if namespace in self._pods else ""]
        _check_synced(mirror, "pods")
        return mirror

    def all_pods(self) -> list[PodView]:
        """Return the pods of all namespaces that are served. Raises :class:`Unsynced`."""
        return [pod for namespace in self._pods for pod in self.pods_of(namespace).views()]

    def _pod_changed(self, before: PodView | None, after: PodView | None) -> None:
        pod = after or before
        assert pod is not None  # a change has two sides, and one of them exists
        self._on_pod(pod)

    def _node_changed(self, before: Node | None, after: Node | None) -> None:
        node = after or before
        assert node is not None  # a change has two sides, and one of them exists
        self._on_node(node.view.name)


def _check_synced(mirror: Mirror[Any], what: str) -> None:
    if not mirror.synced:
        raise Unsynced(f"the {what} have not been listed yet")
