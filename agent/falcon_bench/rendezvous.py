"""Let a round's peers in at a port: only a peer that sends the round's token and a turn gets a connection."""

import hmac
import select
import socket
import struct
import time
from collections.abc import Iterable  # noqa: F401  in comments

HELLO_SECONDS = 1.0  # a stranger that says nothing is shown out
MOST_WAITING = 64  # connections that have not said who they are; the oldest go first
MOST_INSIDE = 32  # that have come for a turn that has not begun
_MAGIC = b"falcon1\n"
_HELLO = struct.Struct(">8s64sIBB")


class RefusedError(Exception):
    """A peer does not do what an executor does."""


def remaining(until):  # type: (float) -> float
    """Return the seconds that are left, for a socket's timeout. Raises TimeoutError where none are."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("the peer did not answer before the end of the turn")
    return left


class Door:
    """A listener at a port that the kernel has chosen, on all of this pod's addresses."""

    def __init__(self):  # type: () -> None
        self._listener = _listen()
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._waiting = {}  # type: dict[socket.socket, tuple[float, bytes]]  # since when, and what it has said
        self._inside = []  # type: list[tuple[tuple[int, int, int], socket.socket]]

    @staticmethod
    def hello(token, key):  # type: (bytes, tuple[int, int, int]) -> bytes
        """Return what a peer says first. ``key``: its replica, the turn, and what the connection is for."""
        return _HELLO.pack(_MAGIC, token, *key)

    def wait(self, seconds):  # type: (float) -> None
        """Accept each connection and let it wait until the order says who is expected: no crowd keeps a peer out."""
        if select.select([self._listener], [], [], seconds)[0]:
            self._open()

    def let_in(self, token, key, many, until):  # type: (bytes, tuple[int, int, int], int, float) -> list[socket.socket]
        """Return so many connections of the peer that comes for this. Raises TimeoutError if they do not come."""
        while True:
            # Connections of other turns may have come first: they are kept for their own turn.
            found = [each for own, each in self._inside if own == key]
            if len(found) >= many:
                self._inside = [(own, each) for own, each in self._inside if own != key]
                return found[:many]
            self._look(token, until)

    def _look(self, token, until):  # type: (bytes, float) -> None
        """Take who knocks, and hear who they are."""
        self._show_out(each for each, (since, _) in self._waiting.items() if time.monotonic() - since > HELLO_SECONDS)
        asked = [self._listener] + list(self._waiting)
        for each in select.select(asked, [], [], min(HELLO_SECONDS, remaining(until)))[0]:
            if each is self._listener:
                self._open()
            else:
                self._hear(each, token)

    def _open(self):  # type: () -> None
        try:
            knocking = self._listener.accept()[0]
        except OSError:  # it has gone again
            return
        knocking.setblocking(False)
        self._waiting[knocking] = (time.monotonic(), b"")
        oldest = sorted(self._waiting, key=lambda each: self._waiting[each][0])
        self._show_out(oldest[:-MOST_WAITING])

    def _hear(self, knocking, token):  # type: (socket.socket, bytes) -> None
        since, said = self._waiting[knocking]
        try:
            part = knocking.recv(_HELLO.size - len(said))
        except OSError:
            part = b""
        said += part
        if part and len(said) < _HELLO.size:
            self._waiting[knocking] = (since, said)
            return
        del self._waiting[knocking]
        # Without the token it is a stranger, or a peer of another round.
        key = _key(said, token) if part else None
        if key is None or len(self._inside) >= MOST_INSIDE:
            knocking.close()
            return
        knocking.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._inside.append((key, knocking))

    def _show_out(self, those):  # type: (Iterable[socket.socket]) -> None
        for each in list(those):
            del self._waiting[each]
            each.close()


def _key(said, token):  # type: (bytes, bytes) -> tuple[int, int, int] | None
    """Return for what a connection comes; None where it does not know the token."""
    magic, theirs, replica, turn, kind = _HELLO.unpack(said)
    known = hmac.compare_digest(theirs.rstrip(b"\0"), token)
    return (replica, turn, kind) if magic == _MAGIC and known else None


def _listen():  # type: () -> socket.socket
    """Listen on IPv6 and IPv4, or on IPv4 alone where there is no IPv6."""
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        listener = None
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
            if family == socket.AF_INET6:
                # One socket then serves peers of both families.
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind((address, 0))
            listener.listen(MOST_WAITING)
            return listener
        except OSError:
            if listener is not None:
                listener.close()
            if family == socket.AF_INET:
                raise
    raise AssertionError("the last family returns or raises")
