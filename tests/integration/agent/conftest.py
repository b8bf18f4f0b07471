"""Pods that end with their test, the gateway to which they report, and the operator's stream to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.integration.agent.pod import PYTHON, Pod
from tests.integration.gateway.gateways import BINARY, Site, running_site
from tests.integration.shim.launching import SHIM

AGENT = Path(__file__).parents[3] / "agent"


class MakePod(Protocol):
    def __call__(self, procs: int, *command: str, options: tuple[str, ...] = ()) -> Pod: ...


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Yield an etcd and a gateway that run."""
    for needed in (SHIM / "falcon-launch", PYTHON, BINARY):
        if not needed.is_file():
            pytest.fail(f"{needed} is missing: run the tests through make test-integration")
    with running_site(tmp_path / "site") as site:
        yield site


@pytest.fixture
def python_dir(tmp_path: Path) -> Path:
    """Return a folder like ``/falcon/python``."""
    folder = tmp_path / "python"
    folder.mkdir()
    for name in ("falcon_site", "falcon_start", "falcon_torch"):
        (folder / name).symlink_to(AGENT / name)
    return folder


@pytest.fixture
async def make_pod(tmp_path: Path, site: Site) -> AsyncIterator[MakePod]:
    """Start one pod with that many ranks; its agent, plan and training wait for the test's word.

    ``command``: by default the training program; ``options``: of the launcher.
    """
    made: list[Pod] = []
    (gateway,) = site.gateways
    async with site.leader(gateway) as operator:

        def make(procs: int, *command: str, options: tuple[str, ...] = ()) -> Pod:
            made.append(Pod(tmp_path, site, operator, procs=procs, command=command, options=options))
            return made[-1]

        yield make
        for pod in made:
            pod.stop()
