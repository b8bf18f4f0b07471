"""Wrap a stream in both directions so that it raises this package's errors.

grpc.aio leaves three traps: a write waits for ever when the call ends before its headers were sent; a write after the
end raises ``InvalidStateError`` instead of the call's status; and a call whose channel is closed raises
``CancelledError`` in a task that was not cancelled. Here the end of a stream, whatever ended it, shows in
:meth:`Duplex.receive` alone.
"""

from __future__ import annotations

import asyncio
from typing import Any, Generic

import grpc.aio

from falcon_etcd._errors import Unavailable, error_from_call
from falcon_etcd._pool import Endpoint
from falcon_etcd._rpc import REQUIRE_LEADER, RequestT, ResponseT, Rpc


class Duplex(Generic[RequestT, ResponseT]):
    """One open stream. The stream ends when the member loses its leader; its user cancels it when done."""

    def __init__(
        self,
        rpc: Rpc[RequestT, ResponseT],
        endpoint: Endpoint,
        operation: str,
        timeout_seconds: float | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._operation = operation
        self._response = rpc.response
        method: grpc.aio.StreamStreamMultiCallable[RequestT, ResponseT] = endpoint.channel.stream_stream(
            rpc.path, rpc.request.SerializeToString, rpc.response.FromString
        )
        self._call = method(timeout=timeout_seconds, metadata=REQUIRE_LEADER)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._call.add_done_callback(self._end)
        self._read: asyncio.Future[object] | None = None

    def _end(self, _: object) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    async def send(self, request: RequestT) -> None:
        """Send a request; returns when the request has left or the stream has ended."""
        write: asyncio.Future[Any] = asyncio.ensure_future(self._call.write(request))
        try:
            await asyncio.wait({write, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            _abandon(write)  # receive() will tell why it failed, if it did

    async def receive(self, timeout_seconds: float | None = None) -> ResponseT | None:
        """Return the next answer; None after ``timeout_seconds`` of silence.

        Raises :class:`EtcdError` when the stream ended.
        """
        # A read that timed out stays open: a cancelled read would lose the answer that it was about to return.
        if self._read is None:
            self._read = asyncio.ensure_future(self._call.read())
        done, _ = await asyncio.wait({self._read}, timeout=timeout_seconds)
        if not done:
            return None
        read, self._read = self._read, None
        try:
            response = read.result()
        except grpc.aio.AioRpcError as error:
            raise error_from_call(error, operation=self._operation, endpoint=self.endpoint.address) from None
        except asyncio.CancelledError:  # the call's: our own surfaces from wait()
            raise self.endpoint.gone(self._operation) from None
        if isinstance(response, self._response):
            return response
        raise Unavailable(self._operation, self.endpoint.address, "etcd ended the stream")

    def cancel(self) -> None:
        """End the stream, if it has not ended yet."""
        self._call.cancel()
        if self._read is not None:
            _abandon(self._read)


def _abandon(future: asyncio.Future[object]) -> None:
    """Cancel the future, or fetch its exception if it failed, so that asyncio does not report it as overlooked."""
    if not future.cancel() and not future.cancelled():
        future.exception()
