"""Make calls with a deadline, fail over, and repeat a call where that cannot do harm.

A call is repeated on the next endpoint when it is a read, or when it provably had no effect: it was never sent, or the
member refused it because it had no leader. Everything else is the caller's decision: it gets an error that says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import grpc.aio

from falcon_etcd._duplex import Duplex
from falcon_etcd._errors import Unavailable, error_from_call
from falcon_etcd._pool import Endpoint, Pool
from falcon_etcd._rpc import REQUIRE_LEADER, RequestT, ResponseT, Rpc

_T = TypeVar("_T")
_RETRY_PAUSE_SECONDS: Final = 0.05


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
        """Send one request and return its answer. Raises :class:`EtcdError`; never takes longer than the timeout."""

        async def attempt(endpoint: Endpoint, attempt_seconds: float) -> ResponseT:
            method = endpoint.channel.unary_unary(rpc.path, rpc.request.SerializeToString, rpc.response.FromString)
            return await method(request, timeout=attempt_seconds, metadata=REQUIRE_LEADER if require_leader else None)

        return await self._repeat(attempt, rpc.repeatable, operation, timeout_seconds, only)

    async def exchange(
        self, rpc: Rpc[RequestT, ResponseT], request: RequestT, operation: str, *, timeout_seconds: float
    ) -> ResponseT:
        """Send one request and return its answer, over a method that etcd only offers as a stream."""

        async def attempt(endpoint: Endpoint, attempt_seconds: float) -> ResponseT:
            stream = Duplex(rpc, endpoint, operation, attempt_seconds)
            try:
                await stream.send(request)
                response = await stream.receive()
                assert response is not None  # silence ends with the stream's own deadline
                return response
            finally:
                stream.cancel()

        return await self._repeat(attempt, rpc.repeatable, operation, timeout_seconds, None)

    async def open(self, rpc: Rpc[RequestT, ResponseT], operation: str) -> Duplex[RequestT, ResponseT]:
        """Open a stream to the endpoint in use.

        Raises :class:`Unavailable` when no endpoint connects within the call timeout.
        """
        endpoint = await self.pool.ready(self.call_timeout_seconds, operation)
        return Duplex(rpc, endpoint, operation)

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
            # Half of the time for the first try leaves the other half for another endpoint.
            remaining = max(0.001, deadline - time.monotonic())
            try:
                return await attempt(endpoint, remaining / 2 if repeatable and alternatives else remaining)
            except grpc.aio.AioRpcError as error:
                typed = error_from_call(error, operation=operation, endpoint=endpoint.address, repeatable=repeatable)
                if not isinstance(typed, Unavailable):
                    raise typed from None
                failure = typed
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise
                raise endpoint.gone(operation) from None
            except Unavailable as error:
                failure = error
            self.pool.demote(endpoint)
            # A write that may have been carried out must not be repeated here.
            if failure.maybe_applied or time.monotonic() >= deadline:
                raise failure
            await asyncio.sleep(_RETRY_PAUSE_SECONDS)


def _is_cancelled() -> bool:
    """Check whether a CancelledError is meant for this task; if not, it comes from a call whose channel was closed."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
