"""Which gateways are reached, and for which the operator waits, by what etcd and the API server say."""

from __future__ import annotations

import pytest

from falcon_operator.bus.census import GatewayPod, Registration, addresses, awaited

READY, STARTING = GatewayPod("a", "10.0.0.1:7444", True), GatewayPod("a", "10.0.0.1:7444", False)
PENDING = GatewayPod("a", "", False)
REGISTERED = {"a": Registration("10.0.0.1:7444", 7)}


@pytest.mark.parametrize(
    ("registered", "pods", "waits"),
    [
        ({}, None, False),
        (REGISTERED, None, True),
        ({}, {"a": READY}, True),
        (REGISTERED, {"a": READY}, True),
        (REGISTERED, {"a": STARTING}, False),
        (REGISTERED, {}, False),
        ({}, {"a": STARTING}, False),
        ({}, {"a": PENDING}, False),
    ],
    ids=[
        "nobody-names-it",
        "pods-not-listed-yet",
        "etcd-is-away",
        "both-name-it",
        "its-node-is-lost",
        "its-pod-is-gone",
        "it-starts",
        "it-has-no-address",
    ],
)
def test_a_gateway_is_waited_for_while_its_pod_is_ready(
    registered: dict[str, Registration], pods: dict[str, GatewayPod] | None, waits: bool
) -> None:
    assert awaited(registered, pods) == ({"a"} if waits else set())


def test_a_stream_is_tried_to_each_gateway_that_anybody_names() -> None:
    assert addresses(REGISTERED, None) == addresses({}, {"a": STARTING}) == {"a": "10.0.0.1:7444"}
    assert addresses({}, {"a": PENDING}) == {}
    assert addresses({"b": Registration("10.0.0.2:7444", 1)}, {"a": READY}) == {
        "a": "10.0.0.1:7444",
        "b": "10.0.0.2:7444",
    }
