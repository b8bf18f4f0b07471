"""Set up authentication in etcd, with root as its only user, for the operator and the gateways.

Every function is safe to repeat.

Earlier releases gave each job's agents a user of their own, named by the job's uid; what is left of them is removed.
"""

from __future__ import annotations

import contextlib
import re

import structlog

from falcon_etcd import AlreadyExists, Client, NotFound
from falcon_operator.bus.certs import ROOT_USER

log = structlog.get_logger(__name__)
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


async def ensure_auth(client: Client) -> None:
    """Turn authentication on where it is off."""
    if (await client.auth.status()).enabled:
        return
    with contextlib.suppress(AlreadyExists):
        await client.auth.add_role(ROOT_USER)
    with contextlib.suppress(AlreadyExists):
        await client.auth.add_user(ROOT_USER)
    await client.auth.grant_role(ROOT_USER, ROOT_USER)
    await client.auth.enable()
    log.info("etcd authentication enabled")


async def remove_agents(client: Client) -> None:
    """Remove the users and roles of jobs. No other name in etcd looks like a uid."""
    for user in filter(_UID.fullmatch, await client.auth.list_users()):
        with contextlib.suppress(NotFound):
            await client.auth.delete_user(user)
        log.info("user removed: agents do not reach etcd any more", user=user)
    for role in filter(_UID.fullmatch, await client.auth.list_roles()):
        with contextlib.suppress(NotFound):
            await client.auth.delete_role(role)
