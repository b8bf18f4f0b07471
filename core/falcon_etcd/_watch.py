"""A watch over a prefix that does not end.

One stream at a time. When it breaks, the next one continues after the last revision seen (:mod:`falcon_etcd._cursor`
says whether it may); where it may not, the prefix is listed and the consumer gets the listing instead of events.
A stream that stays silent is asked for its progress; one that does not answer either is taken for dead. Progress also
moves the position of a quiet watch forward, so that compaction does not overtake it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Literal

from falcon_etcd._cursor import Cursor
from falcon_etcd._duplex import Duplex
from falcon_etcd._errors import (
    Compacted,
    FutureRevision,
    Unavailable,
    error_from_reason,
)
from falcon_etcd._model import KeyValue, Relisted, WatchEvent, encode_key, prefix_range
from falcon_etcd._proto import kv_pb2
from falcon_etcd._proto import rpc_pb2 as pb
from falcon_etcd._rpc import RANGE, WATCH
from falcon_etcd._transport import Transport

_log = logging.getLogger("falcon_etcd")
_QUIET_SECONDS = 5.0
_PAUSE_SECONDS = (0.05, 1.0)

WatchStream = Duplex[pb.WatchRequest, pb.WatchResponse]
Lister = Callable[[], Awaitable[tuple[Sequence[KeyValue], int, int]]]
"""Lists the prefix: keys, revision, cluster id."""


class _HistoryLostError(Exception):
    """The position is worthless; the argument says why."""


class Watcher:
    """One consumer's watch. :meth:`events` is the whole of it."""

    def __init__(self, transport: Transport, prefix: str, lister: Lister, *, with_previous: bool) -> None:
        self._transport = transport
        self._prefix = prefix
        self._operation = f"watch {prefix}"
        self._list = lister
        self._with_previous = with_previous
        self._failures = 0

    async def events(self, start_revision: int | None) -> AsyncGenerator[WatchEvent | Relisted, None]:
        """Events from ``start_revision``, or a listing and the events after it. See ``Client.watch_prefix``."""
        cursor = None if start_revision is None else Cursor(start_revision)
        fresh = True  # the position comes from the caller or a listing just made, not from an earlier stream
        while True:
            try:
                if cursor is None:
                    kvs, revision, cluster_id = await self._list()
                    cursor = Cursor.after_listing(kvs, revision, cluster_id)
                    fresh = True
                    yield Relisted(kvs, revision)
                async for events, moved in self._stream(cursor, fresh=fresh):
                    for event in events:
                        yield event
                    cursor, fresh = moved, False
            except _HistoryLostError as loss:
                _log.info("%s: listing again: %s", self._operation, loss)
                cursor = None
            except Unavailable as error:
                fresh = False
                await self._pause(error)

    async def _pause(self, error: Unavailable) -> None:
        """Wait a little, longer each time, with jitter: a restarted etcd meets all its watchers at once."""
        log = _log.warning if self._failures == 0 else _log.debug
        log("%s: interrupted, will continue: %s", self._operation, error)
        first, longest = _PAUSE_SECONDS
        await asyncio.sleep(min(longest, first * 2**self._failures) * random.uniform(0.5, 1.0))
        self._failures = min(self._failures + 1, 10)

    async def _stream(self, cursor: Cursor, *, fresh: bool) -> AsyncGenerator[tuple[list[WatchEvent], Cursor], None]:
        """One stream's answers and the position after each, until it breaks (:class:`Unavailable`) or misfits."""
        stream = await self._transport.open(WATCH, self._operation)
        try:
            await stream.send(self._create_request(cursor.next_revision))
            while True:
                response = await self._answer(stream)
                self._check(response, cursor, stream.endpoint.address)
                if response.created:
                    cursor = cursor.at(response.header.cluster_id)
                    await self._confirm(cursor, fresh=fresh)
                    self._failures = 0
                else:
                    events = [_event(event) for event in response.events]
                    cursor = cursor.seen(events, response.header.revision)
                    yield events, cursor
        except Unavailable:
            self._transport.pool.demote(stream.endpoint)
            raise
        finally:
            stream.cancel()

    async def _answer(self, stream: WatchStream) -> pb.WatchResponse:
        """The next answer. A silent stream is asked for its progress; one that does not answer either is given up."""
        response = await stream.receive(_QUIET_SECONDS)
        if response is None:
            await stream.send(pb.WatchRequest(progress_request=pb.WatchProgressRequest()))
            response = await stream.receive(_QUIET_SECONDS)
        if response is None:
            silence = f"silent for {2 * _QUIET_SECONDS:.0f} s"
            raise Unavailable(self._operation, stream.endpoint.address, silence)
        return response

    def _create_request(self, start_revision: int) -> pb.WatchRequest:
        start, end = prefix_range(self._prefix)
        return pb.WatchRequest(
            create_request=pb.WatchCreateRequest(
                key=start,
                range_end=end,
                start_revision=start_revision,
                progress_notify=True,
                prev_kv=self._with_previous,
            )
        )

    def _check(self, response: pb.WatchResponse, cursor: Cursor, endpoint: str) -> None:
        """Raise unless the answer continues the watch."""
        if response.compact_revision:
            raise _HistoryLostError(f"revision {cursor.next_revision} was compacted ({response.compact_revision})")
        if response.canceled:
            reason = response.cancel_reason or "watch cancelled by etcd"
            raise error_from_reason(reason, operation=self._operation, endpoint=endpoint)
        if response.created and not cursor.accepts(response.header.cluster_id, response.header.revision):
            raise _HistoryLostError(
                f"cluster {response.header.cluster_id:x} at revision {response.header.revision} "
                f"does not continue cluster {cursor.cluster_id:x} at {cursor.next_revision - 1}"
            )

    async def _confirm(self, cursor: Cursor, *, fresh: bool) -> None:
        """Raise unless the witness is where it was. Without a witness only a fresh position is trusted."""
        if cursor.witness is None:
            if not fresh:
                raise _HistoryLostError("nothing seen yet by which to recognise the history")
            return
        witness = cursor.witness
        request = pb.RangeRequest(key=encode_key(witness.key), revision=witness.mod_revision)
        try:
            response = await self._transport.call(RANGE, request, self._operation)
        except (Compacted, FutureRevision) as error:
            raise _HistoryLostError(error.detail) from None
        found = KeyValue.from_proto(response.kvs[0]) if response.kvs else None
        if not cursor.confirmed_by(found):
            raise _HistoryLostError(f"{witness.key} at revision {witness.mod_revision} is not what it was")


def _event(event: kv_pb2.Event) -> WatchEvent:
    previous = KeyValue.from_proto(event.prev_kv) if event.HasField("prev_kv") else None
    kind: Literal["put", "delete"] = "delete" if event.type == kv_pb2.Event.DELETE else "put"
    return WatchEvent(kind, KeyValue.from_proto(event.kv), previous)
