"""What the operator reads of a gateway's pod."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_operator.bus.census import GatewayPod
from falcon_operator.cluster.gateway_pods import item


def pod(ip: str = "10.0.0.1", ready: str = "True", **metadata: str) -> bytes:
    manifest: dict[str, Any] = {
        "metadata": {"name": "g", "namespace": "n", "resourceVersion": "5", **metadata},
        "spec": {
            "containers": [
                {
                    "name": "gateway",
                    "ports": [
                        {"name": "agents", "containerPort": 7443},
                        {"name": "operator", "containerPort": 7444},
                    ],
                }
            ]
        },
        "status": {"conditions": [{"type": "Ready", "status": ready}], **({"podIP": ip} if ip else {})},
    }
    return msgspec.json.encode(manifest)


@pytest.mark.parametrize(
    ("ip", "address"), [("10.0.0.1", "10.0.0.1:7444"), ("fd00::7", "[fd00::7]:7444"), ("", "")], ids=["4", "6", "none"]
)
def test_the_operators_port_at_the_pods_address(ip: str, address: str) -> None:
    assert item(pod(ip)).view == GatewayPod("g", address, True)


def test_a_pod_that_is_lost_or_ends_is_not_ready() -> None:
    assert not item(pod(ready="Unknown")).view.ready
    assert not item(pod(ready="False")).view.ready
    assert not item(pod(deletionTimestamp="2026-01-01T00:00:00Z")).view.ready
