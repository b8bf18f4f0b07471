"""Remove layers of the builds' cache that are no longer worth their space.

``buildah bud --layers`` keeps every step of every build as an image without a name and never removes such an image, so
that the store grows by each change. The steps of an image's last builds are kept, also those of stages that only
compile. The latter are no ancestors of the image, but without them each change would compile everything again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import msgspec

KEPT_BUILDS = 3  # of each image: to and fro between two branches stays quick
_STEP = re.compile(r"^--> (?:Using cache )?([0-9a-f]{11})[0-9a-f]*$", re.MULTILINE)


class Stored(msgspec.Struct, frozen=True):
    """An image of the store, as ``buildah images --all --json`` lists it."""

    id: str  # sha256:, 64 hex digits
    created: str = msgspec.field(name="createdatraw")  # RFC 3339 in UTC, without trailing zeros
    names: list[str] | None = None


def steps(output: str) -> list[str]:
    """Return the layers that a build made or took from the cache, from its output: the first 11 digits of their ids."""
    return list(dict.fromkeys(_STEP.findall(output)))


def remember(builds: Sequence[str], used: Sequence[str]) -> list[str]:
    """Return the builds with a new line for the last build at the end; the same build again takes only one line."""
    line = " ".join(used)
    return [*(build for build in builds if build != line), line][-KEPT_BUILDS:]


def obsolete(images: Sequence[Stored], kept: Collection[str]) -> list[str]:
    """Return ids of nameless images whose beginning is not among ``kept``; a child comes before its parent."""
    old = [image for image in images if not image.names and not _digits(image).startswith(tuple(kept))]
    old.sort(key=lambda image: image.created.rstrip("Z"), reverse=True)
    return [_digits(image) for image in old]


def _digits(image: Stored) -> str:
    return image.id.removeprefix("sha256:")
