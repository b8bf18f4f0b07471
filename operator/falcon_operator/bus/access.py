"""Users and roles in etcd: root for the operator, and one user with one role for each job.

A job's user is named by the job's uid, which is also the common name of its agents' certificate. Its role may write
``reports/`` and read ``commands/`` of the job's own prefix, no more: an agent need not read what it reported, and
leases need no permission. Every function here is safe to repeat.
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
    """Turn authentication on where it is off, with root and the given jobs. Return whether it was off.

    The jobs' users are made before authentication is enabled, so that no agent of these jobs is refused in between.
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
    """Create the job's role and its user, in this order: whenever the user exists, it has all its rights."""
    auth = client.auth
    with contextlib.suppress(AlreadyExists):
        await auth.add_role(key.uid)
    await auth.grant_prefix(key.uid, key.reports, "write")
    await auth.grant_prefix(key.uid, key.commands, "read")
    with contextlib.suppress(AlreadyExists):
        await auth.add_user(key.uid)
    await auth.grant_role(key.uid, key.uid)


async def revoke(client: Client, job_uid: str) -> None:
    """Delete the job's user, then its role: no user ever works with only a part of its rights."""
    with contextlib.suppress(NotFound):
        await client.auth.delete_user(job_uid)
    with contextlib.suppress(NotFound):
        await client.auth.delete_role(job_uid)


async def holders(client: Client) -> frozenset[str]:
    """Return the job uids that have a user or a role. No other name in etcd looks like a uid."""
    names = {*await client.auth.list_users(), *await client.auth.list_roles()}
    return frozenset(name for name in names if _UID.fullmatch(name))
