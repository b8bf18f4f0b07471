"""Parts of what the recovery remembers (``state``): ranks' places, and set-up calls that were tried again."""

from __future__ import annotations

import msgspec


class _State(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base: camelCase, defaults left out; unknown fields of a newer version are ignored."""


class Place(_State, frozen=True, kw_only=True):
    """A rank's place: its pod and its node."""

    rank: int
    pod_name: str
    node: str


class RetryIncident(_State, frozen=True, kw_only=True):
    """Set-up calls of communicators that ranks have tried again in place, after which they went on."""

    id: str
    at: float  # when it was seen
    generation: int
    places: list[Place]  # the first NAMED_RANKS
    ranks: int  # all of them
    retries: int  # of all of them


class Retried(_State, frozen=True, kw_only=True):
    """The retries that the ranks of a generation have reported."""

    generation: int
    retries: int
    since: float  # when there were first so many
    shown: int = 0  # so many of them by incidents
    shown_at: float = 0.0  # when the newest of these incidents was made, unix seconds
