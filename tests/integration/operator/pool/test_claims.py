"""Many nodes lost together: each lost replica claims a spare of its own, on a real API server."""

from __future__ import annotations

import pytest

from benchmarks.ready import claims
from tests.integration.api.apiserver import ApiServer
from tests.integration.operator.cluster import Installation


@pytest.mark.slow
async def test_thirty_nodes_lost_together_claim_thirty_spares_in_a_few_looks(
    api: ApiServer, installation: Installation
) -> None:
    claims.prepare(installation)
    found = await claims.measure(api, installation.namespace)
    assert claims.wrong(found) == []
    assert found.looks <= 5, "all claims are one write of the pool's status, and not a look each"
