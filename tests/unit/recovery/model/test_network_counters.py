"""Which pod's network stands in the evidence of a slow link."""

from __future__ import annotations

import msgspec

from falcon_core.recovery.diagnosis.slow_links import network_seen
from falcon_core.recovery.model.evidence import NetworkSeen
from falcon_core.recovery.model.observation import MemberSeen
from falcon_core.wire.network import NetworkSignals
from falcon_core.wire.reporting.messages import Summary
from falcon_core.wire.reporting.reports import decode_summary, encode_summary
from falcon_operator.status.text.slow_links import network_words


def pod(replica: int, again: int, healthy: int = 100, *, congested: int = -1, faulty: int = -1) -> MemberSeen:
    network = NetworkSignals(again, healthy, congested, 0, faulty, 0)
    return MemberSeen(replica=replica, pod_name=f"job-{replica}", node=f"node-{replica}", network=network)


def test_it_is_the_pod_whose_share_of_segments_sent_again_grew_most() -> None:
    pods = [pod(0, 9_000, 9_000), pod(1, 5_000, 100), pod(2, 90_000, 100)]
    assert network_seen(pods, {0, 1}) == NetworkSeen(
        pod_name="job-1", node="node-1", again_ppm=5_000, healthy_again_ppm=100
    )


def test_adapters_are_named_by_the_worst_of_them() -> None:
    found = network_seen([pod(0, 0, congested=7, faulty=1), pod(1, 50, -1, congested=3, faulty=2)], {0, 1})
    assert found is not None
    assert (found.pod_name, found.congested, found.faulty) == ("job-1", 7, 2)
    assert network_words(found) == (
        "; TCP segments sent again: 0.01 % by pod job-1 (node node-1); RDMA adapters slowed down by 7 congestion"
        " notices a second; 2 RDMA packets a second lost or out of order"
    )


def test_nothing_is_said_where_nothing_is_known() -> None:
    unknown = msgspec.structs.replace(pod(0, -1), network=None)
    assert network_seen([unknown, pod(1, -1), pod(2, 50)], {0, 1}) is None
    assert network_words(None) == ""


def test_a_report_carries_it() -> None:
    signals = NetworkSignals(1, 2, 3, 4, 5, 6)
    summary = Summary(pod_uid="pod", sequence=1, unix_ns=5, generation=2, network=signals)
    assert decode_summary(encode_summary(summary, ()), "pod").network == signals
