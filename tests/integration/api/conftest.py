"""A kube-apiserver that serves Falcon's API, once a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.api.apiserver import ApiServer, running_apiserver

CRDS = Path(__file__).resolve().parents[3] / "crds"


@pytest.fixture(scope="session")
def api() -> Iterator[ApiServer]:
    """Yield the server with the definitions of crds/ established."""
    with running_apiserver() as server:
        server.ok("kubectl", "apply", "--server-side", "-f", str(CRDS))
        server.ok("kubectl", "wait", "--for=condition=Established", "--timeout=120s", "-f", str(CRDS))
        yield server
