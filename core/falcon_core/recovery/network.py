"""What the networks of a slow link's pods show, as evidence beside the collectives' times. Pure; decides nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from falcon_core.wire.network import NetworkSignals


class NetworkSeen(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The pod whose network differs most from what it was: of the members' pods, while the link is slow."""

    pod_name: str
    node: str
    again_ppm: int  # TCP segments sent again, of a million
    healthy_again_ppm: int = -1  # while training was healthy; -1: unknown
    congested: int = 0  # congestion notices of RDMA adapters, a second, of the pod with most
    faulty: int = 0  # likewise, packets that were lost or out of order


class Networked(Protocol):
    """A pod, as far as it matters here."""

    @property
    def replica(self) -> int: ...

    @property
    def pod_name(self) -> str: ...

    @property
    def node(self) -> str: ...

    @property
    def network(self) -> NetworkSignals | None: ...


def network_seen(pods: Sequence[Networked], replicas: Collection[int]) -> NetworkSeen | None:
    """Return what these replicas' pods say of their networks; None where none of them knows.

    The pod is that whose share of segments sent again grew most.
    """
    known = [(pod, pod.network) for pod in pods if pod.replica in replicas and pod.network is not None]
    known = [(pod, network) for pod, network in known if network.again_ppm >= 0]
    if not known:
        return None
    pod, most = max(known, key=lambda each: each[1].again_ppm - max(0, each[1].healthy_again_ppm))
    return NetworkSeen(
        pod_name=pod.pod_name,
        node=pod.node,
        again_ppm=most.again_ppm,
        healthy_again_ppm=most.healthy_again_ppm,
        congested=max(0, *(network.congested_a_second for _, network in known)),
        faulty=max(0, *(network.faulty_a_second for _, network in known)),
    )
