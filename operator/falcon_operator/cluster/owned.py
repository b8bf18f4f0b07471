"""Write the objects that a job needs under names that are its own: never over the object of another owner.

An object is the job's if it has an owner reference with the job's uid. An object whose controller is an earlier
TrainingJob of the same name is what that job has left: it is deleted. Any other object is foreign, and is left as it
is. An object of the job's that a person has edited is brought back, and what the person added stays (docs/adr/0115).
"""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import msgspec

from falcon_operator.api.common import GROUP
from falcon_operator.base.ports import Conflict, Foreign, Manifest, NotFound
from falcon_operator.cluster.transport import MERGE_PATCH, Transport, path_of

_ATTEMPTS = 3  # each begins with a read; another actor may write between it and our write


async def ensure(http: Transport, version: str, plural: str, wanted: Manifest) -> None:
    """Create the object, or bring the job's own one back to ``wanted``.

    Raises Foreign if another object has the name, Conflict if the object keeps changing or is being deleted.
    """
    meta = wanted["metadata"]
    path = path_of(version, plural, meta["namespace"], meta["name"])
    reason = "it is being deleted"
    for _ in range(_ATTEMPTS):
        try:
            try:
                found = msgspec.json.decode(await http.call("GET", path))
            except NotFound:
                await http.call("POST", path_of(version, plural, meta["namespace"]), body=wanted)
                return
            if await _settle(http, path, found, wanted):
                return
        except (NotFound, Conflict) as error:  # another actor wrote in between
            reason = str(error)
    raise Conflict(f"{_called(wanted)} could not be written: {reason}")


async def remove(http: Transport, version: str, plural: str, namespace: str, job: str, suffix: str) -> None:
    """Delete the object ``<job><suffix>`` if its controller is the TrainingJob ``job``; do nothing otherwise."""
    path = path_of(version, plural, namespace, job + suffix)
    with contextlib.suppress(NotFound, Conflict):
        found = msgspec.json.decode(await http.call("GET", path))
        if _is_job(_controller(found), job):
            await _delete(http, path, found)


async def _settle(http: Transport, path: str, found: Manifest, wanted: Manifest) -> bool:
    """Change or delete what is there. Return whether it is as ``wanted`` now."""
    standing = _standing(found, wanted)
    if standing == "Foreign":
        raise foreign(wanted, _owner_words(found))
    # A change of an object that is being deleted is lost with it: wait until the name is free.
    if found["metadata"].get("deletionTimestamp"):
        return False
    if standing == "Left":
        await _delete(http, path, found)
        return False
    # Patch the difference alone: what a person added to the object stays.
    change = difference(found, _brought_back(found, wanted))
    if change:
        meta = found["metadata"]
        # Uid and version make the server refuse the patch if the object has changed since it was read.
        change.setdefault("metadata", {}).update(uid=meta["uid"], resourceVersion=meta["resourceVersion"])
        await http.call("PATCH", path, body=change, content_type=MERGE_PATCH)
    return True


async def _delete(http: Transport, path: str, found: Manifest) -> None:
    meta = found["metadata"]
    preconditions = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
    await http.call("DELETE", path, body={"preconditions": preconditions})


# -- whose an object is ------------------------------------------------------------------------------------------------


def _standing(found: Manifest, wanted: Manifest) -> Literal["Own", "Left", "Foreign"]:
    owners = wanted["metadata"].get("ownerReferences") or []
    present = {reference.get("uid") for reference in found["metadata"].get("ownerReferences") or []}
    if {owner["uid"] for owner in owners} <= present:
        return "Own"
    return "Left" if _is_job(_controller(found), owners[0]["name"]) else "Foreign"


def _controller(found: Manifest) -> Manifest:
    references = found["metadata"].get("ownerReferences") or []
    return next((reference for reference in references if reference.get("controller")), {})


def _is_job(reference: Manifest, name: str) -> bool:
    # Any version of Falcon's group: an earlier release may have written the object.
    is_ours = str(reference.get("apiVersion", "")).startswith(f"{GROUP}/")
    return is_ours and reference.get("kind") == "TrainingJob" and reference.get("name") == name


def _owner_words(found: Manifest) -> str:
    controller = _controller(found)
    return f"it belongs to {controller['kind']} {controller['name']}" if controller else "nothing controls it"


def foreign(wanted: Manifest, why: str) -> Foreign:
    """Return the error of a name that a foreign object has."""
    return Foreign(
        f"{_called(wanted)} exists and is not this job's ({why}), so Falcon does not change it: delete it if it is"
        " not needed, or give the job another name"
    )


def _called(wanted: Manifest) -> str:
    meta = wanted["metadata"]
    return f"{wanted['kind']} {meta['namespace']}/{meta['name']}"


# -- what has to change ------------------------------------------------------------------------------------------------


def _brought_back(found: Manifest, wanted: Manifest) -> Manifest:
    """Return the object with the wanted labels and the wanted fields of its spec; all else stays."""
    labels = {**(found["metadata"].get("labels") or {}), **(wanted["metadata"].get("labels") or {})}
    return {
        **found,
        "metadata": {**found["metadata"], "labels": labels},
        "spec": {**found["spec"], **wanted["spec"]},
    }


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the merge patch (RFC 7386) that makes ``after`` of ``before``; empty if they are equal."""
    # In a merge patch, null removes a key.
    change: dict[str, Any] = dict.fromkeys(before.keys() - after.keys())
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := difference(old, value):
                change[key] = inner
        elif value != old:
            change[key] = value
    return change
