"""Define how an agent reports the hashes of all-reduce results, which are equal on all members of a communicator.

A turn of the sampling is ``every`` calls in a row, one of which is verified. A digest stands for one verified call, or
for all verified calls of ``width`` turns. So a report is bounded however many calls are verified, and no verified call
is left out as long as reports come. A digest of several calls is a sum that does not depend on their order, with
another such sum that says which calls are in it.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

WIDTHS: Final = {1: 8, 64: 4}  # turns that a digest covers, and how many of the newest such digests a report has
MAX_DIGESTS: Final = sum(WIDTHS.values())  # of a rank in a report
_Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Small = Annotated[int, Meta(ge=0, le=1 << 32)]
_Known = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]  # -1: not known
_MODULO: Final = 1 << 63  # of a digest: a whole number in MessagePack's signed range
_WORD: Final = (1 << 64) - 1
_FRACTION: Final = 0x9E3779B97F4A7C15


class Digest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The hash of one or several results."""

    width: _Small  # 1: of a single call
    first: _Small  # number of the first call in it
    calls: _Small
    numbers: _Count  # digest of the calls' numbers: equal only for the same calls
    value: _Count


class RankResults(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The newest digests of the only communicator of all ranks that one rank's process has had."""

    rank: _Known
    life: _Small  # from 1: which process of this rank, in this generation, as far as its agents know
    every: _Small  # one in so many calls is verified
    size: _Small  # ranks of the communicator
    digests: Annotated[list[Digest], Meta(max_length=MAX_DIGESTS)] = []


def call_digest(number: int, hashed: int) -> int:
    """Return the digest of one call's result."""
    return ((hashed ^ number * _FRACTION) * _FRACTION >> 1) % _MODULO


def number_digest(number: int) -> int:
    """Return the digest of a call's number; the sum of some of them is not that of others with an equal total."""
    mixed = (number + 1) * _FRACTION & _WORD
    mixed = (mixed ^ mixed >> 32) * _FRACTION & _WORD
    return (mixed ^ mixed >> 29) >> 1


def sum_digest(one: int, other: int) -> int:
    """Return the digest of the calls of two digests together, in whatever order they come."""
    return (one + other) % _MODULO
