"""How the operator reaches the API server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kubernetes.aio import config

from falcon_operator.cluster.transport import Transport, Unavailable, load_configuration

NOWHERE = "http://api-server.invalid:6443"


async def test_a_pods_proxy_is_not_asked_for_the_way_to_the_api_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def take(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(writer)
        writer.close()

    proxy = await asyncio.start_server(take, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
    for name in ("KUBECONFIG", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")

    def in_a_pod(client_configuration: Any) -> None:
        client_configuration.host = NOWHERE

    monkeypatch.setattr(config, "load_incluster_config", in_a_pod)
    http = Transport(await load_configuration(), lambda: None)
    try:
        with pytest.raises(Unavailable):
            await http.call("GET", "/version")
    finally:
        await http.close()
        proxy.close()
    assert not asked
