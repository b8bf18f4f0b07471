"""The attacks of ``benchmarks.scale.open_ports``, each from a process of its own, without a certificate or a token.

An attack goes on for some seconds and returns what it achieved, in a few words.
"""

from __future__ import annotations

import contextlib
import itertools
import resource
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

MOST: Final = 5_000  # connections
ADDRESSES: Final = 64
THREADS: Final = 8
# A record with the beginning of a ClientHello that never ends.
HELLO: Final = bytes([22, 3, 1, 0x3F, 0xF0, 1, 0, 0x3F, 0xEC, 3, 3]) + bytes(15_000)
SECURED: Final = ("token", "webhook", "copies", "agents", "operator")  # kinds of ports with TLS
REQUESTS: Final = b"GET /metrics HTTP/1.1\r\nHost: falcon\r\n\r\n" * 200


@dataclass(frozen=True)
class Port:
    """A port that is attacked."""

    kind: str
    number: int


@dataclass(frozen=True)
class Stranger:
    """An attack, as the table names it, and the kinds of ports that it is run against."""

    name: str
    run: Callable[[int, float], str]
    kinds: tuple[str, ...]


def launch(stranger: int, port: Port, seconds: float) -> str:
    """Run the attack of this number to its end."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return STRANGERS[stranger].run(port.number, seconds)


def _source(number: int) -> str:
    return f"127.0.2.{1 + number % ADDRESSES}"


def _open(port: int, seconds: float, said: bytes, *, small: bool = False) -> list[socket.socket]:
    """Open connections as fast as they are taken, and keep each after a few bytes."""
    kept = []
    end = time.monotonic() + seconds
    for number in range(MOST):
        if time.monotonic() >= end:
            break
        opened = socket.socket()
        if small:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        opened.settimeout(0.5)
        with contextlib.suppress(OSError):
            opened.bind((_source(number), 0))
            opened.connect(("127.0.0.1", port))
            opened.setblocking(False)
            opened.send(said)
        kept.append(opened)
    return kept


def _held(what: str, said: bytes, *, small: bool = False) -> Callable[[int, float], str]:
    def hold(port: int, seconds: float) -> str:
        end = time.monotonic() + seconds
        kept = _open(port, seconds, said, small=small)
        time.sleep(max(0.0, end - time.monotonic()))
        left = sum(map(_is_open, kept))
        for opened in kept:
            opened.close()
        return f"{len(kept):,} connections {what}, {left} open at the end"

    return hold


def _is_open(opened: socket.socket) -> bool:
    opened.setblocking(False)
    try:
        while opened.recv(4096):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def wrong_tokens(port: int, seconds: float) -> str:
    """Ask with tokens that no API server knows, a new one each time, from many addresses at once."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    end = time.monotonic() + seconds
    numbers = itertools.count()

    def ask(_: int) -> Counter[str]:
        answers: Counter[str] = Counter()
        while time.monotonic() < end:
            answers[_answer(port, next(numbers), context)] += 1
        return answers

    with ThreadPoolExecutor(THREADS) as threads:
        total = sum(threads.map(ask, range(THREADS)), Counter[str]())
    return "answers: " + ", ".join(f"{count:,} × {answer}" for answer, count in total.most_common(4))


def _answer(port: int, number: int, context: ssl.SSLContext) -> str:
    request = f"GET /metrics HTTP/1.1\r\nHost: falcon\r\nAuthorization: Bearer wrong-{number}\r\n\r\n"
    try:
        with (
            socket.create_connection(("127.0.0.1", port), 10, (_source(number), 0)) as opened,
            context.wrap_socket(opened) as secured,
        ):
            secured.sendall(request.encode())
            return secured.recv(64).decode(errors="replace").split(" ")[1]
    except (OSError, IndexError):
        return "closed"


STRANGERS: Final = (
    Stranger("slow readers of metrics", _held("that read nothing", REQUESTS, small=True), ("plain",)),
    Stranger("silent connections before TLS", _held("without a word", b""), SECURED),
    Stranger("half a TLS handshake", _held("with half a handshake", HELLO), SECURED),
    Stranger("wrong tokens", wrong_tokens, ("token",)),
)
