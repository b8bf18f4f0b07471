"""The server and kubectl are those of the version that FALCON_KUBERNETES names: another one would pass unnoticed."""

from __future__ import annotations

import json

import pytest

from tests.integration.api.apiserver import VERSION, ApiServer


@pytest.mark.skipif(not VERSION, reason="FALCON_KUBERNETES is not set: the cluster's own version is used")
def test_server_and_kubectl_are_of_the_version_under_test(api: ApiServer) -> None:
    found = json.loads(api.ok("kubectl", "version", "--output=json"))
    for program in ("serverVersion", "clientVersion"):
        assert f"{found[program]['major']}.{found[program]['minor']}" == VERSION
