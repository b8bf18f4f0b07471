"""The samples of a slow rank's stack, as they are remembered: objects, where the wire has arrays (``wire.samples``)."""

from __future__ import annotations

import msgspec

from falcon_core.wire.samples import StackSamples


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
