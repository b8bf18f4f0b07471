"""Read and write the ConfigMap in which the anomaly service's learned limits are kept.

The chart makes it, empty; the operator may read and change it by its name alone. Entries whose names are no kinds of
jobs belong to others and stay.
"""

from __future__ import annotations

import msgspec

from falcon_core.wire.lessons import Models, readable
from falcon_operator.cluster.transport import MERGE_PATCH, Transport, path_of


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _ConfigMap(msgspec.Struct, frozen=True):
    metadata: _Meta
    data: dict[str, str] | None = None


class Stored(msgspec.Struct, frozen=True):
    """What was read, and its version."""

    version: str
    models: Models


class ModelMap:
    """One ConfigMap of the operator's own namespace."""

    def __init__(self, transport: Transport, namespace: str, name: str) -> None:
        self._http = transport
        self._path = path_of("v1", "configmaps", namespace, name)

    async def read(self) -> Stored:
        """Return what is stored. Raises NotFound where there is no such ConfigMap."""
        found = msgspec.json.decode(await self._http.call("GET", self._path), type=_ConfigMap)
        return Stored(found.metadata.resource_version, readable(found.data or {}))

    async def write(self, before: Stored, models: Models) -> None:
        """Replace what was read. Raises Conflict where it has changed since."""
        gone = dict.fromkeys(before.models.keys() - models.keys())
        changed = {kind: text for kind, text in models.items() if before.models.get(kind) != text}
        # Two operators may lead for a moment, and people may write: the version keeps each from undoing the other.
        change = {"metadata": {"resourceVersion": before.version}, "data": {**gone, **changed}}
        await self._http.call("PATCH", self._path, body=change, content_type=MERGE_PATCH)
