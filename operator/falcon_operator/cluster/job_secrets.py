"""Write the jobs' Secrets without a right to read any: a name's present object is judged by a write on trial.

The operator may create and update Secrets, not get them. A Secret that exists is updated on trial (a server-side dry
run) under another field manager. The answer has the owners of the fields after the update. A field whose value the
update would not change keeps its owner. So the label of the job's name still belongs to the operator exactly where the
operator has made the Secret for a job of this name. Only then follows the update itself, under the uid that the trial
has shown (docs/adr/0115). Nothing of a foreign Secret's data comes back: the answer has what was sent.
"""

from __future__ import annotations

import msgspec

from falcon_operator.api.common import LABEL_JOB
from falcon_operator.base.ports import Conflict, Manifest, NotFound, Rejected
from falcon_operator.cluster import owned
from falcon_operator.cluster.transport import FIELD_MANAGER, AlreadyExists, Transport, path_of

_TRIAL_MANAGER = f"{FIELD_MANAGER}-trial"
_MOST_KNOWN = 4096  # Secrets; beyond them the ones that were written first are judged again
_ATTEMPTS = 3


class _ManagedFields(msgspec.Struct, frozen=True, rename="camel"):
    manager: str = ""
    fields_v1: dict[str, object] = msgspec.field(name="fieldsV1", default_factory=dict)


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    managed_fields: list[_ManagedFields] = []


class _Written(msgspec.Struct, frozen=True):
    metadata: _Meta


class JobSecrets:
    """The Secrets of all jobs."""

    def __init__(self, http: Transport) -> None:
        self._http = http
        self._uids: dict[str, str] = {}  # by path: those that this process has written

    async def write(self, manifest: Manifest) -> None:
        """Create or replace the Secret. Raises Foreign if a foreign Secret has the name."""
        meta = manifest["metadata"]
        path = path_of("v1", "secrets", meta["namespace"], meta["name"])
        reason = ""
        for _ in range(_ATTEMPTS):
            try:
                # The uid of the last write saves the trial. It is forgotten first, so that a conflict leads to a new
                # trial.
                uid = self._uids.pop(path, "")
                if not uid:
                    try:
                        made = await self._http.call("POST", path_of("v1", "secrets", meta["namespace"]), body=manifest)
                        return self._keep(path, made)
                    except AlreadyExists:
                        uid = await self._own(path, manifest)
                # With the uid the server refuses the write if another actor has replaced the Secret since the trial.
                body = {**manifest, "metadata": {**meta, "uid": uid}}
                return self._keep(path, await self._http.call("PUT", path, body=body))
            except (NotFound, Conflict) as error:  # deleted or made again meanwhile: look again
                reason = str(error)
        raise Conflict(f"Secret {meta['namespace']}/{meta['name']} could not be written: {reason}")

    def _keep(self, path: str, written: bytes) -> None:
        self._uids[path] = msgspec.json.decode(written, type=_Written).metadata.uid
        if len(self._uids) > _MOST_KNOWN:
            del self._uids[next(iter(self._uids))]

    async def _own(self, path: str, manifest: Manifest) -> str:
        """Return the uid of the Secret that the operator has made for a job of this name; raise Foreign otherwise."""
        query = {"dryRun": "All", "fieldManager": _TRIAL_MANAGER}
        try:
            answer = await self._http.call("PUT", path, query=query, body=manifest)
        except Rejected as error:  # by the admission policy, or a field that no update may change
            raise owned.foreign(manifest, f"the API server refuses to change it: {error}") from error
        found = msgspec.json.decode(answer, type=_Written).metadata
        if not any(entry.manager == FIELD_MANAGER and _has_label(entry) for entry in found.managed_fields):
            raise owned.foreign(manifest, "the operator has not made it")
        return found.uid


def _has_label(entry: _ManagedFields) -> bool:
    """Check whether these are owned fields with the label of a job's name among them."""
    part: object = entry.fields_v1
    for key in ("f:metadata", "f:labels", f"f:{LABEL_JOB}"):
        part = part.get(key) if isinstance(part, dict) else None
    return part is not None
