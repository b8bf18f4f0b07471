"""Upgrade what an older operator stored, and refuse what only a newer operator can read (ADR 127).

A TrainingRun holds the version of its layout and the oldest version that can read it. A run without a version has
version 1. Versions count changes that a decoder cannot bridge by itself: a new field with a default needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from falcon_core import __version__
from falcon_operator.intent.model import upgrades


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """A version of the layout in which ``TrainingRun.spec`` is stored."""

    version: int
    readable_from: int  # oldest version whose operators can read this one; its own version: there is no way back
    release: str  # operator release that introduced version ``readable_from``
    upgrade: Callable[[dict[str, Any]], dict[str, Any]] | None = None  # from the version before; takes and returns spec


# All layouts, the newest last; version n has place n - 1. Operators store the newest one.
LAYOUTS: tuple[Layout, ...] = (
    Layout(version=1, readable_from=1, release=""),
    # An older operator would find no open slowdown, and would open a second incident for the same node.
    Layout(version=2, readable_from=2, release="0.1.0", upgrade=upgrades.with_one_list_of_slowdowns),
    # Likewise: each slowdown's onset and times stand in parts of it, and what the job remembers in parts of the state.
    Layout(version=3, readable_from=3, release="0.1.0", upgrade=upgrades.with_parts),
    # An older operator shows no wait of the peers until it has taken the figures again.
    Layout(version=4, readable_from=3, release="0.1.0", upgrade=upgrades.with_peers),
)


def stamp() -> dict[str, Any]:
    """Return the fields of a stored spec that name its layout."""
    newest = LAYOUTS[-1]
    return {
        "version": newest.version,
        "readableFrom": newest.readable_from,
        "readableFromRelease": newest.release,
    }


def refusal(spec: Mapping[str, Any], namespace: str, name: str) -> str:
    """Return why this operator must not read a stored spec, and the remedy; "" where it may."""
    oldest, own = _number(spec, "readableFrom"), LAYOUTS[-1].version
    if oldest <= own:
        return ""
    release = spec.get("readableFromRelease")
    remedy = f"operator release {release} or newer" if release else "the operator release that stored it"
    return (
        f"TrainingRun {namespace}/{name} was stored by a newer operator: its spec.version is"
        f" {_number(spec, 'version')}, which operators of version {oldest} or newer can read (spec.readableFrom), and"
        f" this operator (release {__version__}) has version {own}. Run {remedy}. Until then training goes on, and"
        f" nothing is repaired. Where that release must not run, run kubectl delete trainingrun {name} -n {namespace}:"
        " this operator makes it again from the pods, and the incidents so far are forgotten"
    )


def upgraded(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored spec, of an older, this or a newer version, in the layout of this operator.

    What a newer version added stays in it, for the decoder to ignore.
    """
    result = dict(spec)
    for layout in LAYOUTS[_number(spec, "version") :]:
        assert layout.upgrade is not None, f"layout {layout.version} has no upgrade from the version before"
        result = layout.upgrade(result)
    return result | stamp()


def _number(spec: Mapping[str, Any], field: str) -> int:
    """Return a version that a spec names; 1 where it names none."""
    value = spec.get(field)
    return value if isinstance(value, int) and value >= 1 else 1
