"""A kube-apiserver once a session; a fresh namespace with its own operator and etcd for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.integration.api.apiserver import ApiServer, running_apiserver
from tests.integration.operator.bench import Bench
from tests.integration.operator.cluster import CRDS, Installation, namespaces

_names = namespaces()


@pytest.fixture(scope="session")
def api() -> Iterator[ApiServer]:
    """Yield the server with the definitions of crds/ established."""
    with running_apiserver() as server:
        server.ok("kubectl", "apply", "--server-side", "-f", str(CRDS))
        server.ok("kubectl", "wait", "--for=condition=Established", "--timeout=120s", "-f", str(CRDS))
        yield server


@pytest.fixture
def installation(api: ApiServer, tmp_path: Path) -> Iterator[Installation]:
    """Yield an installation of which nothing runs yet."""
    installed = Installation(api, next(_names), tmp_path)
    api.ok("kubectl", "create", "namespace", installed.namespace)
    yield installed
    installed.stop()
    api.run("kubectl", "delete", "nodes,warmpools,trainingjobs", "--all", "-A", "--wait=false")
    # Nodes of the same names follow, and no kubelet ends the pods that are bound to them.
    api.run("kubectl", "delete", "pods", "--all", "-A", "--force", "--grace-period=0", "--wait=false")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Bench]:
    """Yield an installation of the bus whose etcd runs."""
    bench = Bench(tmp_path)
    bench.etcd.start()
    yield bench
    bench.stop()


@pytest.fixture
async def bench(running: Bench) -> AsyncIterator[Bench]:
    """Yield that installation; its sessions end before it."""
    yield running
    await running.close()
