"""The mirror of pods while a real kube-apiserver goes away and comes back: what happened meanwhile is found."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from falcon_operator.cluster.inventory import Inventory
from falcon_operator.cluster.transport import Transport, load_configuration
from tests.integration.api.apiserver import ApiServer, running_store, serving
from tests.integration.operator.cluster import until_async
from tests.integration.ports import free_port

PATIENCE_SECONDS = 120.0


def a_pod(name: str, role: str = "trainer") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"falcon.dev/role": role}},
        "spec": {"containers": [{"name": "c", "image": "x:1"}]},
    }


def create(api: ApiServer, *manifests: dict[str, Any]) -> None:
    api.ok("kubectl", "create", "-f", "-", stdin="\n---\n".join(json.dumps(manifest) for manifest in manifests))


def delete(api: ApiServer, name: str) -> None:
    api.ok("kubectl", "-n", "default", "delete", "pod", name, "--grace-period=0", "--force")


class Watcher:
    """An inventory that runs, and which pods it holds and has reported."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self.reported: list[str] = []

    @property
    def names(self) -> set[str]:
        return {pod.name for pod in self._inventory.all_pods()}

    async def holds(self, *names: str) -> None:
        await until_async(lambda: self.names == set(names), seconds=PATIENCE_SECONDS)


@asynccontextmanager
async def watching(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watcher]:
    """Watch the pods of a server until the end of the context; the server may go away and come back."""
    monkeypatch.setitem(os.environ, "KUBECONFIG", str(api.kubeconfig))
    transport = Transport(await load_configuration(), lambda: None)
    inventory = Inventory(transport, [])
    watcher = Watcher(inventory)
    task = asyncio.create_task(inventory.run(lambda pod: watcher.reported.append(pod.name), lambda _: None))
    try:
        await inventory.synced()
        yield watcher
    finally:
        task.cancel()
        await asyncio.wait({task})
        await transport.close()


async def test_what_happened_while_the_server_was_away_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with running_store() as store:
        async with AsyncExitStack() as watched:
            with serving(store, port) as api:
                create(api, a_pod("stays"), a_pod("goes"), a_pod("of-others", role="web"))
                watcher = await watched.enter_async_context(watching(api, monkeypatch))
                assert watcher.names == {"stays", "goes"}
            with serving(store, free_port()) as elsewhere:  # where the watcher does not look for it
                delete(elsewhere, "goes")
                create(elsewhere, a_pod("comes"))
            assert watcher.names == {"stays", "goes"}, "while the server is away, its last state stands"
            with serving(store, port):
                await watcher.holds("stays", "comes")
                assert watcher.reported.count("goes") == 2, "made and deleted"
