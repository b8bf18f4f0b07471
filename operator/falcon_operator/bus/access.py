"""Users and roles in etcd: root for the operator, one of each a job.

A job's user is its uid, the common name of its agents' certificate. Its role may write ``reports/`` and read
``commands/`` of its own prefix, no more: an agent need not read what it reported, and leases need no permission.
Everything is safe to repeat.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable

import structlog

from falcon_core.wire.keys import JobKey
from falcon_etcd import AlreadyExists, Client, NotFound
from falcon_operator.bus.certs import ROOT_USER

log = structlog.get_logger(__name__)
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


async def ensure_auth(client: Client, jobs: Iterable[JobKey]) -> bool:
    """Turn authentication on where it is off, with root and the given jobs; whether it was off.

    The jobs come first: between the two steps no agent of theirs is refused.
    """
    if (await client.auth.status()).enabled:
        return False
    with contextlib.suppress(AlreadyExists):
        await client.auth.add_role(ROOT_USER)
    with contextlib.suppress(AlreadyExists):
        await client.auth.add_user(ROOT_USER)
    await client.auth.grant_role(ROOT_USER, ROOT_USER)
    for key in jobs:
        await grant(client, key)
    await client.auth.enable()
    log.info("etcd authentication enabled")
    return True


async def grant(client: Client, key: JobKey) -> None:
    """The job's role and user. The user comes last: it is never there with less than its rights."""
    auth = client.auth
    with contextlib.suppress(AlreadyExists):
        await auth.add_role(key.uid)
    await auth.grant_prefix(key.uid, key.reports, "write")
    await auth.grant_prefix(key.uid, key.commands, "read")
    with contextlib.suppress(AlreadyExists):
        await auth.add_user(key.uid)
    await auth.grant_role(key.uid, key.uid)


async def revoke(client: Client, job_uid: str) -> None:
    """The user first: nobody acts with half of the rights."""
    with contextlib.suppress(NotFound):
        await client.auth.delete_user(job_uid)
    with contextlib.suppress(NotFound):
        await client.auth.delete_role(job_uid)


async def holders(client: Client) -> frozenset[str]:
    """Uids that have a user or a role; nobody else's names look like them."""
    names = {*await client.auth.list_users(), *await client.auth.list_roles()}
    return frozenset(name for name in names if _UID.fullmatch(name))
