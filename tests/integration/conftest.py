"""Fixtures that integration tests share, and which tests run side by side.

``make test-integration`` runs them on a few workers, since much of their time is waiting. A test that makes all that it
uses may run beside any other. Tests that share a kube-apiserver or another server, and those of the local cluster's
tools (they write to this machine's cgroups), stay in order on one worker. A test whose subject is time is marked
``alone`` and runs when the workers are done.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from falcon_etcd import Client
from tests.integration.etcd_server import EtcdServer
from tests.integration.refusing import Network

FOLDERS_IN_ORDER = {"api", "cluster"}  # a kube-apiserver that a session shares; this machine's cgroups
FILES_IN_ORDER = (  # what a module shares takes long to make
    "tests/integration/agent/test_node.py",
    "tests/integration/chart/",
    "tests/integration/checkpoint/test_losses.py",
    "tests/integration/operator/",  # each worker that gets some of them has a kube-apiserver
    "tests/integration/packaging/",
)

FIRST = (  # half a minute and more each: at the end, all but one worker would wait for them
    "tests/integration/operator/bus/test_authorities.py",
    "tests/integration/operator/test_life.py",
    "tests/integration/operator/test_foreign_objects.py",
    "tests/integration/shim/launch/test_resources.py",
    "tests/integration/shim/launch/test_standby",
    "tests/integration/shim/measurement/test_gpu_programs.py",
    "tests/integration/shim/test_gate_pauses.py",
    "tests/integration/shim/test_torch.py",
    "tests/integration/checkpoint/test_client.py",
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: its subject is time; no other test runs beside it")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))


class Groups(LoadScopeScheduling):
    """Gives a worker the tests of a group in order (xdist 3.8's own ``loadgroup`` is silently off under pytest 9)."""

    def _split_scope(self, nodeid: str) -> str:
        """Return the name that a test shares with the tests that it must not run beside; else the test's own name."""
        path = nodeid.partition("::")[0]
        folder = path.split("/")[2]  # of tests/integration/<folder>/test_x.py
        if folder in FOLDERS_IN_ORDER:
            return folder
        return path if path.startswith(FILES_IN_ORDER) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    return Groups(config, log)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """Yield one plain, empty, running etcd member."""
    server = EtcdServer(tmp_path / "etcd")
    server.root.mkdir()
    server.start()
    yield server
    server.kill()


@pytest.fixture
async def client(etcd: EtcdServer) -> AsyncIterator[Client]:
    """Yield a client of :func:`etcd`."""
    async with etcd.client() as client:
        yield client


@pytest.fixture
def network() -> Iterator[Network]:
    """Yield a network of its own, for ranks that are to lose each other."""
    network = Network()
    yield network
    network.close()
