"""Read and write the ConfigMap in which the anomaly service's learned limits are kept.

The chart makes it, empty; the operator may read and change it by its name alone. Entries whose names are no kinds of
jobs belong to others and stay.
"""

from __future__ import annotations

from typing import Final

import msgspec
import structlog

from falcon_core.job_kind import PATTERN
from falcon_core.wire.lessons import MAX_MODELS_BYTES, Models, readable
from falcon_operator.cluster.transport import MERGE_PATCH, Transport, path_of

MOST_NAMED: Final = 8  # kinds in a line of the log
log = structlog.get_logger(__name__)


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
        self._left_out: set[str] = set()  # kinds for which there was no room in the newest read

    async def read(self) -> Stored:
        """Return what is stored. Raises NotFound where there is no such ConfigMap."""
        found = msgspec.json.decode(await self._http.call("GET", self._path), type=_ConfigMap)
        data = found.data or {}
        models = readable(data)
        self._report({kind for kind in data.keys() - models.keys() if PATTERN.fullmatch(kind)})
        return Stored(found.metadata.resource_version, models)

    async def write(self, before: Stored, models: Models) -> None:
        """Replace what was read. Raises Conflict where it has changed since."""
        gone = dict.fromkeys(before.models.keys() - models.keys())
        changed = {kind: text for kind, text in models.items() if before.models.get(kind) != text}
        # Two operators may lead for a moment, and people may write: the version keeps each from undoing the other.
        change = {"metadata": {"resourceVersion": before.version}, "data": {**gone, **changed}}
        await self._http.call("PATCH", self._path, body=change, content_type=MERGE_PATCH)

    def _report(self, left_out: set[str]) -> None:
        if left_out - self._left_out:
            log.warning(
                "the ConfigMap of learned limits is too large: the service learns these kinds of jobs from the start",
                kinds=sorted(left_out)[:MOST_NAMED],
                count=len(left_out),
                most_bytes=MAX_MODELS_BYTES,
                path=self._path,
            )
        self._left_out = left_out
