"""Pods that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from falcon_etcd import Client
from tests.integration.agent.pod import PYTHON, Pod
from tests.integration.etcd_server import EtcdServer
from tests.integration.shim.launching import SHIM

MakePod = Callable[[int], Pod]


@pytest.fixture
def make_pod(tmp_path: Path, etcd: EtcdServer, client: Client) -> Iterator[MakePod]:
    """Start one pod with that many ranks; its agent, plan and training wait for the test's word."""
    for needed in (SHIM / "falcon-launch", PYTHON):
        if not needed.is_file():
            pytest.fail(f"{needed} is missing: run the tests through make test-integration")
    made: list[Pod] = []

    def make(procs: int) -> Pod:
        made.append(Pod(tmp_path, etcd, client, procs=procs))
        return made[-1]

    yield make
    for pod in made:
        pod.stop()
