"""Fixtures that integration tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from falcon_etcd import Client
from tests.integration.etcd_server import EtcdServer


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """One plain, empty, running etcd member."""
    server = EtcdServer(tmp_path / "etcd")
    server.root.mkdir()
    server.start()
    yield server
    server.kill()


@pytest.fixture
async def client(etcd: EtcdServer) -> AsyncIterator[Client]:
    """A client of :func:`etcd`."""
    async with etcd.client() as client:
        yield client
