"""Watch a prefix without end.

One stream at a time. When it breaks, the next one continues after the last revision seen (:mod:`falcon_etcd._cursor`
says whether it may); where it may not, the prefix is listed and the consumer gets the listing instead of events.
A stream that stays silent is asked for its progress; one that does not answer either is taken for dead. Progress also
moves the position of a quiet watch forward, so that compaction does not overtake it.
"""

from __future__ import annotations

import asyncio
import contextlib
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
    """The watch's position is worthless; the argument says why."""


class Watcher:
    """One consumer's watch, read through :meth:`events` alone."""

    def __init__(self, transport: Transport, prefix: str, lister: Lister, *, with_previous: bool) -> None:
        self._transport = transport
        self._prefix = prefix
        self._operation = f"watch {prefix}"
        self._list = lister
        self._with_previous = with_previous
        self._failures = 0

    async def events(self, start_revision: int | None) -> AsyncGenerator[WatchEvent | Relisted, None]:
        """Yield the events from ``start_revision``, or a listing and the events after it (``Client.watch_prefix``)."""
        cursor = None if start_revision is None else Cursor(start_revision)
        fresh = True  # no stream has been open at the cursor yet
        while True:
            try:
                # Without a position that etcd still knows, only a listing is complete.
                if cursor is None:
                    kvs, revision, cluster_id = await self._list()
                    cursor, fresh = Cursor.after_listing(kvs, revision, cluster_id), True
                    yield Relisted(kvs, revision)
                async with contextlib.aclosing(self._stream(cursor, fresh=fresh)) as answers:
                    fresh = False
                    async for events, moved in answers:
                        for event in events:
                            yield event
                        cursor = moved
            except _HistoryLostError as loss:
                cursor = None
                await self._pause(f"etcd {self._operation}: listing again: {loss}")
            except Unavailable as error:
                await self._pause(f"{error}; the watch will continue")

    async def _pause(self, what: str) -> None:
        """Wait a little, longer each time, with jitter: a restarted etcd meets all its watchers at once."""
        log = _log.warning if self._failures == 0 else _log.debug
        log(what)
        first, longest = _PAUSE_SECONDS
        await asyncio.sleep(min(longest, first * 2**self._failures) * random.uniform(0.5, 1.0))
        self._failures = min(self._failures + 1, 10)

    async def _stream(self, cursor: Cursor, *, fresh: bool) -> AsyncGenerator[tuple[list[WatchEvent], Cursor], None]:
        """Yield one stream's events and the cursor behind them.

        Raises :class:`Unavailable` when the stream breaks, :class:`_HistoryLostError` when it does not continue the
        cursor's history.
        """
        stream = await self._transport.open(WATCH, self._operation)
        try:
            await stream.send(self._create_request(cursor.next_revision))
            while True:
                response = await self._answer(stream)
                self._refuse_cancelled(response, stream.endpoint.address)
                events = [_event(event) for event in response.events]
                # The first answer shows which history this member has: the cursor must belong to it.
                if response.created:
                    cursor = await self._joined(cursor, response.header, fresh=fresh)
                elif events:
                    cursor = cursor.after(events)
                else:
                    cursor = cursor.after_progress(response.header.revision)
                yield events, cursor
        except Unavailable:
            self._transport.pool.demote(stream.endpoint)
            raise
        finally:
            stream.cancel()

    async def _answer(self, stream: WatchStream) -> pb.WatchResponse:
        """Return the next answer. A silent stream is asked for its progress.

        Raises :class:`Unavailable` when the stream does not answer that question either.
        """
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

    def _refuse_cancelled(self, response: pb.WatchResponse, endpoint: str) -> None:
        if response.compact_revision:
            raise _HistoryLostError(f"etcd has compacted up to revision {response.compact_revision}")
        if response.canceled:
            reason = response.cancel_reason or "watch cancelled by etcd"
            raise error_from_reason(reason, operation=self._operation, endpoint=endpoint)

    async def _joined(self, cursor: Cursor, header: pb.ResponseHeader, *, fresh: bool) -> Cursor:
        """Return the cursor in this stream's cluster.

        Raises :class:`_HistoryLostError` unless the stream continues the history that the cursor saw.
        """
        misfit = cursor.misfit(header.cluster_id, header.revision, fresh=fresh)
        if misfit is not None:
            raise _HistoryLostError(misfit)
        if cursor.witness is not None:
            await self._ask_for(cursor.witness, cursor)
        if self._failures and not fresh:
            _log.info("%s continues at revision %d", self._operation, cursor.next_revision)
        self._failures = 0
        return cursor.of_cluster(header.cluster_id)

    async def _ask_for(self, witness: KeyValue, cursor: Cursor) -> None:
        """Raise :class:`_HistoryLostError` unless the witness is unchanged.

        The read is linearizable, so it waits for a member that lags.
        """
        request = pb.RangeRequest(key=encode_key(witness.key), revision=cursor.witness_revision)
        try:
            response = await self._transport.call(RANGE, request, self._operation)
        except (Compacted, FutureRevision) as error:
            raise _HistoryLostError(error.detail) from None
        found = KeyValue.from_proto(response.kvs[0]) if response.kvs else None
        contradiction = cursor.contradiction(response.header.revision, found)
        if contradiction is not None:
            raise _HistoryLostError(contradiction)


def _event(event: kv_pb2.Event) -> WatchEvent:
    previous = KeyValue.from_proto(event.prev_kv) if event.HasField("prev_kv") else None
    kind: Literal["put", "delete"] = "delete" if event.type == kv_pb2.Event.DELETE else "put"
    return WatchEvent(kind, KeyValue.from_proto(event.kv), previous)
