"""Hold the leader key, which decides who may write commands to etcd.

Every write of the operator compares the key with the value that this leader has written there, so that a leader that
was stalled, and has a successor, changes nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
import structlog

from falcon_core.wire.keys import LEADER_KEY
from falcon_etcd import Client, Compare, EtcdError, Op

log = structlog.get_logger(__name__)


class BusUnavailable(OSError):  # noqa: N818 - as its namesakes of etcd and Kubernetes
    """The error of a request that the bus did not carry out; the caller repeats the request later."""


class Leadership(Protocol):
    """The part of the election that the bus uses."""

    @property
    def epoch(self) -> int: ...

    async def raise_epoch(self, least: int) -> int: ...


class _Leader(msgspec.Struct, frozen=True):
    """The leader key's value.

    ``identity`` tells two leaders of the same epoch apart; a deleted Lease may lead to two such leaders. ``taken`` is
    new each time the key is taken, so that no heartbeat is mistaken for an earlier one.
    """

    epoch: int
    identity: str
    taken: str = ""


def _stored(value: bytes) -> _Leader:
    try:
        return msgspec.json.decode(value, type=_Leader)
    except msgspec.MsgspecError:
        return _Leader(0, "")  # of no leader: to be replaced


class LeaderKey:
    """One leader's hold of the key."""

    def __init__(self, client: Client, leadership: Leadership, identity: str) -> None:
        self._client = client
        self._leadership = leadership
        self._identity = identity
        self.value = b""  # what this operator wrote; b"" until it has held the key

    async def hold(self, prepare: Callable[[], Awaitable[None]]) -> bool:
        """Write the key once more; return whether it had to be taken first.

        It is taken where it belongs to no leader or to an earlier one. ``prepare`` is awaited before that.

        Raises:
            LeadershipLost: Another leader's key stands, and the Lease is not this operator's either.
            EtcdError: etcd did not answer.
        """
        if self.value:
            held = [Compare.value(LEADER_KEY, "==", self.value)]
            if (await self._client.txn(held, [Op.put(LEADER_KEY, self.value)])).succeeded:
                return False
        return await self._take(prepare)

    async def _take(self, prepare: Callable[[], Awaitable[None]]) -> bool:
        # Read before ``prepare``: a key that another process takes meanwhile has another revision, and the transaction
        # fails.
        kv = await self._client.get(LEADER_KEY)
        await prepare()
        epoch = self._leadership.epoch
        if kv is None:
            if self.value:
                log.warning("etcd lost its data; announcements and commands are written again")
            unchanged = Compare.version(LEADER_KEY, "==", 0)
        else:
            stored = _stored(kv.value)
            if stored.epoch > epoch or (stored.epoch == epoch and stored.identity != self._identity):
                # a Lease that was deleted begins at 0 again; only its present holder may raise the epoch from there
                epoch = await self._leadership.raise_epoch(stored.epoch + 1)
            unchanged = Compare.mod_revision(LEADER_KEY, "==", kv.mod_revision)
        # The random token tells this value from an earlier one of the same epoch and identity.
        value = msgspec.json.encode(_Leader(epoch, self._identity, secrets.token_hex(8)))
        taken = (await self._client.txn([unchanged], [Op.put(LEADER_KEY, value)])).succeeded
        if taken:
            self.value = value
            log.info("leader key taken", epoch=epoch)
        return taken

    async def write(self, *operations: Op) -> None:
        """Write what only the leader may write.

        Raises :class:`BusUnavailable` when etcd cannot be reached or this operator does not hold the key.
        """
        if not self.value:
            raise BusUnavailable("etcd has not been reached yet")
        try:
            # A leader that was stalled and has a successor fails this comparison, and so changes nothing.
            answer = await self._client.txn([Compare.value(LEADER_KEY, "==", self.value)], operations)
        except EtcdError as error:
            raise BusUnavailable(str(error)) from error
        if not answer.succeeded:
            raise BusUnavailable("the leader key is not ours (any more)")
