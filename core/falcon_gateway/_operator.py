"""Keep the operator's stream to one gateway, and the desired state that it repeats to every gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NoReturn

from falcon_gateway._proto import gateway_pb2 as pb
from falcon_gateway._stream import Rpc, Stream, Tls, both, forever

OPERATOR: Final = Rpc("/falcon.gateway.v1.OperatorLink/Operator", pb.FromOperator, pb.ToOperator)
PING_SECONDS: Final = 1.0
_OperatorStream = Stream[pb.FromOperator, pb.ToOperator]
_Changes = asyncio.Queue[pb.FromOperator]


@dataclass(frozen=True, slots=True)
class Leader:
    """The operator that leads, and the epoch of its election."""

    identity: str
    epoch: int


class Desired:
    """The jobs that are announced and their commands, as every gateway shall know them."""

    def __init__(self) -> None:
        self._announced: dict[str, pb.Announce] = {}
        self._commands: dict[tuple[str, str], pb.Publish] = {}
        self._spared: frozenset[str] | None = None  # None: not every job has been announced yet
        self._followers: set[_Changes] = set()

    def announce(self, announce: pb.Announce) -> None:
        """Announce a job, or the pods of an announced one again. Revisions grow."""
        self._announced[announce.job_uid] = announce
        self._tell(pb.FromOperator(announce=announce))

    def all_announced(self, existing: Collection[str] = ()) -> None:
        """Say that no further job will be announced: gateways withdraw all others but those of these uids.

        ``existing`` are all jobs that exist. A new leader says so when it has looked at each.
        """
        self._spared = frozenset(existing)
        self._tell(self._all_announced(self._spared))

    def withdraw(self, job_uid: str) -> None:
        """Withdraw a job and its commands."""
        self._announced.pop(job_uid, None)
        if self._spared is not None:
            self._spared -= {job_uid}
        for key in [key for key in self._commands if key[0] == job_uid]:
            del self._commands[key]
        self._tell(pb.FromOperator(withdraw=pb.Withdraw(job_uid=job_uid)))

    def publish(self, publish: pb.Publish) -> None:
        """Publish a command to all pods of its job. Revisions grow."""
        self._commands[publish.job_uid, publish.name] = publish
        self._tell(pb.FromOperator(publish=publish))

    @contextmanager
    def following(self) -> Iterator[_Changes]:
        """Give a queue of all that is desired now and every change from then on.

        The announcements come first. A mark says where they are complete.
        """
        changes: _Changes = asyncio.Queue()
        for announce in self._announced.values():
            changes.put_nowait(pb.FromOperator(announce=announce))
        if self._spared is not None:
            changes.put_nowait(self._all_announced(self._spared))
        for publish in self._commands.values():
            changes.put_nowait(pb.FromOperator(publish=publish))
        self._followers.add(changes)
        try:
            yield changes
        finally:
            self._followers.discard(changes)

    def _all_announced(self, spared: frozenset[str]) -> pb.FromOperator:
        uids = sorted(spared - self._announced.keys())
        return pb.FromOperator(all_announced=pb.AllAnnounced(spared_job_uids=uids))

    def _tell(self, message: pb.FromOperator) -> None:
        for changes in self._followers:
            changes.put_nowait(message)


class OperatorClient:
    """The operator's connection to one gateway. ``on_batch`` gets every batch, at first those of all it holds."""

    def __init__(
        self, endpoint: str, tls: Tls, desired: Desired, leader: Leader, on_batch: Callable[[pb.Batch], None]
    ) -> None:
        self._endpoint = endpoint
        self._tls = tls
        self._desired = desired
        self._leader = leader
        self._on_batch = on_batch
        self.hello: pb.GatewayHello | None = None  # who answers on the present stream
        self.complete = False  # all that the gateway held when the stream began has come
        self.answered_at: float | None = None  # monotonic; the newest pong

    async def run(self) -> NoReturn:
        """Serve until cancelled.

        Raises:
            Refused: The gateway has met a leader of a higher epoch, or the certificate is not the operator's.
        """
        await forever(self._attempt, lambda: self.answered_at is not None)

    async def _attempt(self) -> NoReturn:
        self.hello, self.complete, self.answered_at = None, False, None
        try:
            with self._desired.following() as changes:
                async with Stream(OPERATOR, self._endpoint, self._tls) as stream:
                    hello = pb.OperatorHello(identity=self._leader.identity, epoch=self._leader.epoch)
                    await stream.send(pb.FromOperator(hello=hello))
                    await both(self._read(stream), self._talk(stream, changes))
        finally:
            self.complete = False

    async def _read(self, stream: _OperatorStream) -> NoReturn:
        while True:
            message = await stream.receive()
            if message.HasField("hello"):
                self.hello = message.hello
            elif message.HasField("batch"):
                self._on_batch(pb.Batch.FromString(message.batch))
            elif message.HasField("all_sent"):
                self.complete = True
            elif message.HasField("pong"):
                self.answered_at = time.monotonic()

    async def _talk(self, stream: _OperatorStream, changes: _Changes) -> NoReturn:
        """Send what is desired, and a ping each second."""
        number, next_ping = 0, time.monotonic()
        change = asyncio.ensure_future(changes.get())
        try:
            while True:
                done, _ = await asyncio.wait({change}, timeout=max(0.0, next_ping - time.monotonic()))
                if done:
                    await stream.send(change.result())
                    change = asyncio.ensure_future(changes.get())
                if time.monotonic() >= next_ping:
                    number, next_ping = number + 1, time.monotonic() + PING_SECONDS
                    await stream.send(pb.FromOperator(ping=pb.Ping(number=number)))
        finally:
            change.cancel()
