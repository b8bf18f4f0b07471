"""What the networks of a slow link's pods show, as evidence beside the collectives' times (``links``)."""

from __future__ import annotations

import msgspec


class NetworkSeen(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The pod whose network differs most from what it was: of the members' pods, while the link is slow."""

    pod_name: str
    node: str
    again_ppm: int  # TCP segments sent again, of a million
    healthy_again_ppm: int = -1  # while training was healthy; -1: unknown
    congested: int = 0  # congestion notices of RDMA adapters, a second, of the pod with most
    faulty: int = 0  # likewise, packets that were lost or out of order
