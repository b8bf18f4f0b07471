"""Wrap a stream in both directions so that its end shows in one place.

grpc.aio leaves three traps: a write waits for ever when the call ends before its headers were sent; a write after the
end raises ``InvalidStateError`` instead of the call's status; and a call whose channel is closed raises
``CancelledError`` in a task that was not cancelled. Here the end of a stream, whatever ended it, shows in
:meth:`Stream.receive` alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Generic, NoReturn, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from falcon_gateway._renewal import Pems, Renewal

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

FIRST_RETRY_SECONDS: Final = 0.1
LONGEST_RETRY_SECONDS: Final = 2.0
_CONNECT_SECONDS: Final = 3.0
LOOK_SECONDS = 5.0  # between two looks at the files of a stream that is open
_FINAL: Final = frozenset(
    {
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
_OPTIONS: Final[Sequence[tuple[str, int]]] = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),  # the gateway is inside the cluster; a pod's proxy is for the world outside
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.keepalive_time_ms", 10_000),  # more often than every 5 s is an attack in the gateway's eyes
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
)


class LinkError(Exception):
    """The error of a stream that has ended."""


class Unavailable(LinkError):  # noqa: N818 - as its namesake of the etcd client
    """The error of a stream that may be opened again, here or at another gateway."""


class Refused(LinkError):  # noqa: N818 - its sibling
    """The error of a stream that the gateway will refuse again: the certificate or the request is wrong."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: the authority that signed the gateway's certificate, and the client's certificate and key.

    ``server_name`` replaces the endpoint's host in the check of the gateway's certificate. The files are read for each
    connection, and a connection is made again some time after they have changed (``_renewal``).
    """

    ca: Path
    cert: Path
    key: Path
    server_name: str | None = None

    def read(self) -> Pems:
        """Return the files' contents. Raises OSError, also while they are being replaced."""
        return Pems(self.ca.read_bytes(), self.cert.read_bytes(), self.key.read_bytes())

    def channel(self, endpoint: str, pems: Pems | None = None) -> grpc.aio.Channel:
        """Return a channel to ``endpoint`` (host:port), with what was read from the files before, if it was.

        Raises :class:`Unavailable` when a file cannot be read.
        """
        try:
            pems = pems or self.read()
        except OSError as error:  # being replaced
            raise Unavailable(f"{endpoint}: {error}") from error
        credentials = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
        name = [] if self.server_name is None else [("grpc.ssl_target_name_override", self.server_name)]
        return grpc.aio.secure_channel(endpoint, credentials, options=[*_OPTIONS, *name])


@dataclass(frozen=True, slots=True)
class Rpc(Generic[RequestT, ResponseT]):
    """One method of the gateway."""

    path: str
    request: type[RequestT]
    response: type[ResponseT]


class Stream(Generic[RequestT, ResponseT]):
    """One open stream, on a connection of its own. ``async with`` opens and closes both."""

    def __init__(self, rpc: Rpc[RequestT, ResponseT], endpoint: str, tls: Tls) -> None:
        self._rpc = rpc
        self._endpoint = endpoint
        self._tls = tls
        self._read: asyncio.Future[object] | None = None
        self._closed = "the connection is closed"  # why it is, where this side has closed it

    async def __aenter__(self) -> Stream[RequestT, ResponseT]:
        try:
            pems = self._tls.read()
        except OSError as error:  # being replaced
            raise Unavailable(f"{self._endpoint}: {error}") from error
        self._channel = self._tls.channel(self._endpoint, pems)
        try:
            # Connect first: a call on a channel that never connects would wait for ever.
            async with asyncio.timeout(_CONNECT_SECONDS):
                await self._channel.channel_ready()
        except TimeoutError:
            await self._channel.close()
            raise Unavailable(f"{self._endpoint}: no connection within {_CONNECT_SECONDS:.0f} s") from None
        except BaseException:
            await self._channel.close()
            raise
        method: grpc.aio.StreamStreamMultiCallable[RequestT, ResponseT] = self._channel.stream_stream(
            self._rpc.path, self._rpc.request.SerializeToString, self._rpc.response.FromString
        )
        self._call = method()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._call.add_done_callback(self._end)
        self._renewing = asyncio.create_task(self._renew(Renewal(pems)), name=f"renewal {self._endpoint}")
        return self

    async def _renew(self, renewal: Renewal) -> None:
        """End the stream when it is due to be made again with the files as they are by then."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with contextlib.suppress(OSError):  # being replaced
                if why := renewal.due(self._tls.read(), time.monotonic()):
                    self._closed = why
                    self._call.cancel()
                    return

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._renewing.cancel()
        self._call.cancel()
        if self._read is not None:
            _abandon(self._read)
        await self._channel.close()

    def _end(self, _: object) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    async def send(self, request: RequestT) -> None:
        """Send a message; returns when the message has left or the stream has ended."""
        write: asyncio.Future[Any] = asyncio.ensure_future(self._call.write(request))
        try:
            await asyncio.wait({write, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            _abandon(write)  # receive() will tell why it failed, if it did

    async def receive(self) -> ResponseT:
        """Return the next message. Raises :class:`LinkError` when the stream has ended."""
        self._read = asyncio.ensure_future(self._call.read())
        await asyncio.wait({self._read})
        read, self._read = self._read, None
        try:
            response = read.result()
        except grpc.aio.AioRpcError as error:
            kind = Refused if error.code() in _FINAL else Unavailable
            raise kind(f"{self._endpoint}: {error.details()}") from None
        except asyncio.CancelledError:  # the call's: our own surfaces from wait()
            raise Unavailable(f"{self._endpoint}: {self._closed}") from None
        if isinstance(response, self._rpc.response):
            return response
        raise Unavailable(f"{self._endpoint}: the gateway ended the stream")


async def both(first: Awaitable[NoReturn], second: Awaitable[NoReturn]) -> NoReturn:
    """Run two directions of a stream until either fails, and raise its error."""
    tasks = [asyncio.ensure_future(first), asyncio.ensure_future(second)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        done.pop().result()
        raise AssertionError("a direction ended without an error")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def forever(attempt: Callable[[], Awaitable[NoReturn]], works: Callable[[], bool]) -> NoReturn:
    """Repeat ``attempt`` after each :class:`Unavailable`, with growing random pauses.

    ``works`` says whether the last attempt got as far as a stream that works; then the pauses begin again.

    Raises:
        Refused: The gateway's answer is final.
    """
    longest = FIRST_RETRY_SECONDS
    while True:
        with contextlib.suppress(Unavailable):
            await attempt()
        if works():
            longest = FIRST_RETRY_SECONDS
        await asyncio.sleep(random.uniform(0, longest))
        longest = min(2 * longest, LONGEST_RETRY_SECONDS)


def _abandon(future: asyncio.Future[object]) -> None:
    """Cancel the future, or fetch its exception if it failed, so that asyncio does not report it as overlooked."""
    if not future.cancel() and not future.cancelled():
        future.exception()
