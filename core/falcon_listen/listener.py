"""Accept the connections of one port within limits, before TLS begins and before a byte is read."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Final

from falcon_listen.places import Limits, Places

REPLACED: Final = "replaced"  # a newer connection took its place
TOO_FAST: Final = "too_fast"  # its source opens too many a second
HANDSHAKE_SECONDS: Final = 5.0
EXHAUSTED_SECONDS: Final = 0.2  # between two attempts while the process has no file descriptor left
RECEIVE_BUFFER_BYTES: Final = 8 << 10
SEND_BUFFER_BYTES: Final = 64 << 10
WAITING: Final = 128  # connections in the kernel's queue
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: discard at once what the client has not read


class _Connection:
    """A connection from its acceptance on, whether or not its TLS handshake has ended."""

    def __init__(self, accepted: socket.socket) -> None:
        self.accepted = accepted
        self.transport: asyncio.BaseTransport | None = None

    @property
    def closed(self) -> bool:
        return self.accepted.fileno() == -1

    def drop(self) -> None:
        """Close at once. What was not read yet is discarded, since the kernel would hold it for minutes."""
        if self.closed:
            return
        self.accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.abort()
        else:
            # The handshake owns the socket, and fails by this.
            with contextlib.suppress(OSError):
                self.accepted.shutdown(socket.SHUT_RDWR)


class Listener:
    """A port.

    ``refused`` is called for each connection that is closed for another reason than a client's or the server's wish.

    ``context`` is asked for each new connection: an authority that was loaded into a context once cannot be taken out.

    Without ``lasting``, a connection has its place until its TLS handshake has ended; from then on the server behind
    ``factory`` counts it. Otherwise it has its place until it is closed, or for ``lasting`` seconds.
    """

    def __init__(
        self,
        listening: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        limits: Limits,
        *,
        refused: Callable[[str], None] = lambda _: None,
        context: Callable[[], ssl.SSLContext] | None = None,
        lasting: float | None = None,
    ) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._factory = factory
        self._refused = refused
        self._context = context
        self._lasting = lasting
        self._places: Places[_Connection] = Places(limits)
        self._serving: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

    @property
    def places_taken(self) -> int:
        """Return the number of connections that have a place."""
        self._free_closed()
        return len(self._places)

    @property
    def port(self) -> int:
        """Return the port's number."""
        return int(self._listening.getsockname()[1])

    def start(self) -> None:
        """Begin to accept connections."""
        self._accepting = asyncio.get_running_loop().create_task(self._accept(), name=f"port {self.port}")

    def close(self) -> None:
        """Stop listening. Connections that are open go on."""
        if self._accepting is not None:
            self._accepting.cancel()
        self._listening.close()

    def drop_all(self) -> None:
        """Close the connections that have a place."""
        for connection in self._places.connections():
            connection.drop()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(self._listening)
            except OSError:  # the client has gone, or the process has no file descriptor left
                await asyncio.sleep(EXHAUSTED_SECONDS)
                continue
            try:
                self._admit(accepted, address[0], loop)
            except Exception as error:  # noqa: BLE001 - one connection must not end the port
                accepted.close()
                loop.call_exception_handler({"message": f"port {self.port}: a connection failed", "exception": error})
            # One connection a turn of the loop: a flood of them delays nothing else.
            await asyncio.sleep(0)

    def _admit(self, accepted: socket.socket, source: str, loop: asyncio.AbstractEventLoop) -> None:
        self._free_closed()
        connection = _Connection(accepted)
        entry = self._places.enter(connection, source, loop.time())
        if entry.replaced is not None:
            self._refused(REPLACED)
            entry.replaced.drop()
        if not entry.admitted:
            self._refused(TOO_FAST)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            accepted.close()
            return
        if self._lasting is not None:
            loop.call_later(self._lasting, connection.drop)
        # The loop itself keeps no task alive.
        task = loop.create_task(self._serve(connection, loop))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    def _free_closed(self) -> None:
        for connection in self._places.connections():
            if connection.closed:
                self._places.leave(connection)

    async def _serve(self, connection: _Connection, loop: asyncio.AbstractEventLoop) -> None:
        seconds = HANDSHAKE_SECONDS if self._context is not None else None
        try:
            connection.transport, _ = await loop.connect_accepted_socket(
                self._factory,
                connection.accepted,
                ssl=self._context() if self._context is not None else None,
                ssl_handshake_timeout=seconds,
            )
        except (OSError, TimeoutError) as error:  # no TLS, no certificate of ours, or too late
            connection.accepted.close()
            # Its frames hold the handshake's buffers, and the collector of cycles would find them only after hundreds.
            error.with_traceback(None).__context__ = None
        if self._lasting is None:
            self._places.leave(connection)


def listening_socket(port: int, host: str = "", *, small_buffers: bool = False) -> socket.socket:
    """Open a port; 0: one that the kernel chooses. Raises OSError.

    ``host``: "" for all addresses, by IPv4 and IPv6 at the same port. ``small_buffers``: for short requests, so that
    the kernel holds little for each client.
    """
    both = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=WAITING, dualstack_ipv6=both)
    if small_buffers:
        # A connection inherits them at its beginning, before the client learns how much it may send.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    return listening
