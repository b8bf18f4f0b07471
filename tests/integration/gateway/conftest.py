"""An etcd and two authorities for each test; the test starts its gateways."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.gateway.gateways import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Yield an installation whose etcd runs."""
    site = Site(tmp_path)
    site.etcd.start()
    yield site
    site.stop()
