"""Which Kubernetes the tests of this folder speak to: ``make test-versions`` runs them with others."""

from __future__ import annotations

import json

from dev.cluster.build import KUBERNETES_VERSION
from tests.integration.api.apiserver import VERSION, ApiServer


def test_server_and_kubectl_are_of_the_version_under_test(api: ApiServer) -> None:
    found = json.loads(api.ok("kubectl", "version", "--output=json"))
    expected = VERSION or KUBERNETES_VERSION.rpartition(".")[0]
    for program in ("serverVersion", "clientVersion"):
        assert f"{found[program]['major']}.{found[program]['minor']}" == expected
