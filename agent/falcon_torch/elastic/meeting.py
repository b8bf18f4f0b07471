"""Serve the place where the processes of a job agree on their next group.

A process keeps one connection, on which it and the server write lines of JSON. Its end is the process's end: the kernel
closes the connection of a process that is killed, and keep-alive packets end that of a machine which is lost. Any
process that reaches the port can take part, as with PyTorch's own store and its groups: a network policy of the cluster
protects the port.
"""

from __future__ import annotations

import itertools
import json
import socket
import socketserver
import threading
import time
from typing import Any, Callable, Dict, Tuple

from falcon_torch.elastic.roster import Arrival, Roster, Standing

MOST_BYTES = 1 << 22  # of a line
LOOK_SECONDS = 0.5
MOST_STRANGERS = 64  # connections that have not entered, next to two for each rank, since all ranks come at once
KEEPALIVE = (("TCP_KEEPIDLE", 3), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 10000))


def keep_alive(connection: socket.socket) -> None:
    """End the connection about ten seconds after the other machine is lost, and send each line at once."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in KEEPALIVE:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Meeting:
    """The server, in threads of this process."""

    def __init__(
        self,
        size: int,
        patience_seconds: float,
        on_refused: Callable[[int, int], None] = lambda rank, process: None,
        on_look: Callable[[Standing], None] = lambda standing: None,
    ) -> None:
        """Begin to listen on a port of the kernel's choice. The other arguments are those of ``Roster``.

        ``on_refused`` is called with the rank and the process number of a process that has lost its place, ``on_look``
        with the present group after each look at it.
        """
        self._on_refused, self._on_look = on_refused, on_look
        self._processes: Dict[int, Tuple[int, int]] = {}  # rank and process number, by seat
        self._roster = Roster(size, patience_seconds)
        self._connections: Dict[int, socket.socket] = {}
        self._strangers: Dict[socket.socket, None] = {}  # that have not entered, the oldest first
        self._most_strangers = 2 * size + MOST_STRANGERS
        self._lock = threading.Lock()
        self._seats = itertools.count(1)
        self._stopped = threading.Event()
        meeting = self

        class _Connection(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                meeting._serve(self.connection, self.rfile)

        class _Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            request_queue_size = 1024
            # MASTER_ADDR may have an IPv6 address alone.
            address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

            def server_bind(self) -> None:
                if self.address_family == socket.AF_INET6:
                    self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                super().server_bind()

            def process_request(self, request: Any, client_address: Any) -> None:
                meeting._admit(request)
                super().process_request(request, client_address)

        self._server = _Server(("", 0), _Connection)
        self.port: int = self._server.server_address[1]
        for work in (self._server.serve_forever, self._watch):
            threading.Thread(target=work, daemon=True, name="falcon-elastic").start()

    @property
    def number(self) -> int:
        """Return the number of the present group; 0: none yet."""
        return self._roster.number

    def close(self) -> None:
        """End the server and all connections."""
        self._stopped.set()
        self._server.shutdown()
        self._server.server_close()

    def _watch(self) -> None:
        # Patience ends without any message.
        while not self._stopped.wait(LOOK_SECONDS):
            with self._lock:
                self._look()

    def _admit(self, connection: socket.socket) -> None:
        """Count a connection in; where there are too many that have not entered, end the oldest.

        Each has a thread, and a container may have no more than so many. A rank enters as soon as it is connected.
        """
        with self._lock:
            self._strangers[connection] = None
            if len(self._strangers) > self._most_strangers:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                _end(oldest)

    def _serve(self, connection: socket.socket, lines: Any) -> None:
        keep_alive(connection)
        seat = next(self._seats)
        try:
            while True:
                line = lines.readline(MOST_BYTES)
                if not line.endswith(b"\n"):
                    return
                with self._lock:
                    self._connections[seat] = connection
                    self._hear(seat, json.loads(line))
                    self._look()
        except (OSError, ValueError, TypeError, KeyError):  # the connection is lost, or speaks another language
            return
        finally:
            with self._lock:
                self._strangers.pop(connection, None)
                self._connections.pop(seat, None)
                self._processes.pop(seat, None)
                self._roster.leave(seat)
                self._look()

    def _hear(self, seat: int, message: Dict[str, Any]) -> None:
        if "enter" in message:
            self._processes[seat] = int(message["enter"]), int(message["process"])
            self._roster.enter(seat, *self._processes[seat])
            self._strangers.pop(self._connections[seat], None)
        elif "arrive" in message:
            arrival = Arrival(str(message["handle"]), list(message["progress"]), bool(message["has_state"]))
            self._roster.arrive(seat, int(message["arrive"]), arrival)
        elif "end" in message:
            self._roster.end(seat)

    def _look(self) -> None:
        orders = self._roster.look(time.monotonic())
        for seat, message in orders.messages:
            connection = self._connections.get(seat)
            if connection is None:
                continue
            try:
                connection.sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                pass  # its own thread sees the end of the connection
        for seat in orders.refused:
            connection = self._connections.pop(seat, None)
            # The report comes first: a reader that sees the connection's end may rely on it.
            if seat in self._processes:
                self._on_refused(*self._processes[seat])
            if connection is not None:
                _end(connection)
        standing = self._roster.standing()
        if standing is not None:
            self._on_look(standing)


def _end(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
