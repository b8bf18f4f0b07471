"""Give the values that the recovery stores their common form, and name a rank's place."""

from __future__ import annotations

import msgspec


class Stored(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of what is stored: camelCase, defaults left out; unknown fields of a newer version are ignored."""


class Place(Stored, frozen=True, kw_only=True):
    """A rank's place: its pod and its node."""

    rank: int
    pod_name: str
    node: str
