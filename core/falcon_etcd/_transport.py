"""Calls with a deadline, failover, and repetition where it cannot do harm.

A call is repeated on the next endpoint when it is a read, or when it provably had no effect: it was never sent, or the
member refused it because it had no leader. Everything else is the caller's decision: it gets an error that says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import grpc
import grpc.aio

from falcon_etcd._errors import Closed, EtcdError, Unavailable, error_from_status
from falcon_etcd._pool import Endpoint, Pool
from falcon_etcd._rpc import RequestT, ResponseT, Rpc

_T = TypeVar("_T")
_RETRY_PAUSE_SECONDS: Final = 0.05
_NO_LEADER: Final = "etcdserver: no leader"
REQUIRE_LEADER: Final = (("hasleader", "true"),)
"""Asks a member that lost its leader to refuse at once instead of leaving the call to its deadline."""

Stream = grpc.aio.StreamStreamCall


def failure_of(error: grpc.aio.AioRpcError, operation: str, endpoint: str, *, repeatable: bool = True) -> EtcdError:
    """The typed error of a call that was handed to a connected channel."""
    detail = error.details() or ""
    return error_from_status(
        error.code(),
        detail,
        operation=operation,
        endpoint=endpoint,
        maybe_applied=not repeatable and detail != _NO_LEADER,
    )


class Transport:
    """The pool and the rules of repetition. One per client."""

    def __init__(self, pool: Pool, call_timeout_seconds: float) -> None:
        self.pool = pool
        self.call_timeout_seconds = call_timeout_seconds

    async def call(
        self,
        rpc: Rpc[RequestT, ResponseT],
        request: RequestT,
        operation: str,
        *,
        timeout_seconds: float | None = None,
        only: str | None = None,
        require_leader: bool = True,
    ) -> ResponseT:
        """One request, one answer. Raises :class:`EtcdError`; never takes longer than the timeout."""

        async def attempt(endpoint: Endpoint, attempt_seconds: float) -> ResponseT:
            method = endpoint.channel.unary_unary(rpc.path, rpc.request.SerializeToString, rpc.response.FromString)
            return await method(request, timeout=attempt_seconds, metadata=REQUIRE_LEADER if require_leader else None)

        return await self._repeat(attempt, rpc.repeatable, operation, timeout_seconds, only)

    async def exchange(
        self, rpc: Rpc[RequestT, ResponseT], request: RequestT, operation: str, *, timeout_seconds: float
    ) -> ResponseT:
        """One request and one answer over a method that etcd only offers as a stream."""

        async def attempt(endpoint: Endpoint, attempt_seconds: float) -> ResponseT:
            stream = self.stream(rpc, endpoint, attempt_seconds)
            try:
                await stream.write(request)
                response = await stream.read()
                if isinstance(response, rpc.response):
                    return response
                raise Unavailable(operation, endpoint.address, "the stream ended without an answer")
            finally:
                stream.cancel()

        return await self._repeat(attempt, rpc.repeatable, operation, timeout_seconds, None)

    @staticmethod
    def stream(
        rpc: Rpc[RequestT, ResponseT], endpoint: Endpoint, timeout_seconds: float | None = None
    ) -> Stream[RequestT, ResponseT]:
        """An open stream; cancel it when done. It ends when the member loses its leader."""
        method: grpc.aio.StreamStreamMultiCallable[RequestT, ResponseT] = endpoint.channel.stream_stream(
            rpc.path, rpc.request.SerializeToString, rpc.response.FromString
        )
        return method(timeout=timeout_seconds, metadata=REQUIRE_LEADER)

    async def _repeat(
        self,
        attempt: Callable[[Endpoint, float], Awaitable[_T]],
        repeatable: bool,
        operation: str,
        timeout_seconds: float | None,
        only: str | None,
    ) -> _T:
        timeout = self.call_timeout_seconds if timeout_seconds is None else timeout_seconds
        deadline = time.monotonic() + timeout
        alternatives = only is None and len(self.pool) > 1
        failure: Unavailable | None = None
        while True:
            remaining = max(0.0, deadline - time.monotonic())
            try:
                endpoint = await self.pool.ready(remaining, operation, only)
            except Unavailable as error:
                raise failure or error from None
            remaining = max(0.001, deadline - time.monotonic())
            try:
                return await attempt(endpoint, remaining / 2 if repeatable and alternatives else remaining)
            except grpc.aio.AioRpcError as error:
                typed = failure_of(error, operation, endpoint.address, repeatable=repeatable)
                if not isinstance(typed, Unavailable):
                    raise typed from None
                failure = typed
            except asyncio.CancelledError:
                raise_if_closed(operation, endpoint.address)
                raise
            except Unavailable as error:
                failure = error
            self.pool.demote(endpoint)
            if failure.maybe_applied or time.monotonic() >= deadline:
                raise failure
            await asyncio.sleep(_RETRY_PAUSE_SECONDS)


def raise_if_closed(operation: str, endpoint: str) -> None:
    """Closing a channel cancels its calls, which looks like a cancellation of the caller's task. Tell them apart."""
    task = asyncio.current_task()
    if task is not None and not task.cancelling():
        raise Closed(operation, endpoint, "the client was closed during the call")
