"""Keep the evidence that explains a slowdown: network counters of a link's pods, and samples of a rank's stack."""

from __future__ import annotations

import msgspec

from falcon_core.wire.reporting.samples import StackSamples


class NetworkSeen(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The pod whose network figures changed most among the members' pods, while the link is slow."""

    pod_name: str
    node: str
    again_ppm: int  # TCP segments sent again, per million
    healthy_again_ppm: int = -1  # the same while training was healthy; -1: unknown
    congested: int = 0  # congestion notices of RDMA adapters per second, of the pod with most
    faulty: int = 0  # packets per second that RDMA adapters lost or got out of order, of the pod with most


class SampledPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A place in the program, and the samples that found the rank there."""

    frames: list[str]  # the innermost first
    samples: int


class Sampled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The samples of a rank's stack."""

    taken: int
    places: list[SampledPlace]  # the places with most samples first


def sampled(sent: StackSamples | None) -> Sampled | None:
    """Return the record of the samples that an agent has sent."""
    if sent is None:
        return None
    places = [SampledPlace(frames=place.frames, samples=place.samples) for place in sent.places]
    return Sampled(taken=sent.taken, places=places)
