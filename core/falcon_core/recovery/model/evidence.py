"""Keep the evidence that explains a slowdown: network counters of a link's pods, and samples of a rank's stack."""

from __future__ import annotations

import msgspec

from falcon_core.wire.reporting.samples import StackSamples


class NetworkSeen(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The pod whose network differs most from what it was: of the members' pods, while the link is slow."""

    pod_name: str
    node: str
    again_ppm: int  # TCP segments sent again, of a million
    healthy_again_ppm: int = -1  # while training was healthy; -1: unknown
    congested: int = 0  # congestion notices of RDMA adapters, a second, of the pod with most
    faulty: int = 0  # likewise, packets that were lost or out of order


class SampledPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A place in the program, and the samples that found the rank there."""

    frames: list[str]  # the innermost first
    samples: int


class Sampled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The samples of a rank's stack."""

    taken: int
    places: list[SampledPlace]  # those of most samples first


def sampled(sent: StackSamples | None) -> Sampled | None:
    """Return what is remembered of the samples that an agent has sent."""
    if sent is None:
        return None
    places = [SampledPlace(frames=place.frames, samples=place.samples) for place in sent.places]
    return Sampled(taken=sent.taken, places=places)
