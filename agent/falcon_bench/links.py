"""Measure the links to this pod's peers, by TCP: ``python3 -m falcon_bench.links NUMBER ORDER RESULT [machine]``.

The program opens a port that the kernel chooses, and writes RESULT: ``{"number": …, "port": …}``. Then it waits until
the file ORDER is of this number. With ``machine`` it first measures how fast this machine computes, for as long as the
order says: RESULT gets ``machine`` (see ``falcon_bench``). Then it measures one link after the other. In the end
RESULT has ``links`` as well: for each peer ``bits`` (received a second, the median of windows), ``rtt_us`` (the lower
quartile of many), or ``why`` not. Whether it is the link that holds a rate down, and not a CPU, shows in ``receiving``
and ``sending`` (which part of the transfer this end computed, or waited for a CPU) and in ``held`` (which part of its
sending the kernel had bytes that the network had not taken).

In each turn this pod has one peer. The pod that dials waits until the other has come to the same turn: no clocks are
compared. Both measure the round trip, and then the transfer in each direction, one after the other. The receiver
counts, and resets the connections when the time is over, so that nothing is left in buffers. Both ends report: one end
alone can make a link look worse, and never better.

The order's token keeps strangers out. Every wait has an end, whatever a peer does: a turn lasts ``TURN_SECONDS`` at
most.
"""

import hmac
import json
import os
import select
import socket
import statistics
import struct
import sys
import time
from pathlib import Path
from typing import Any  # noqa: F401  in comments

from falcon_bench import machine
from falcon_bench.rendezvous import Door, RefusedError, remaining

ORDER_SECONDS = 120.0  # beyond it, the start has gone on without the links
LOOK_SECONDS = 0.02  # between two looks for the order
TURN_SECONDS = 3.0  # with the wait for the peer, which may have read its order later
PINGS, LEAST_PINGS, PING_SECONDS = 25, 5, 0.05
STREAMS = 4  # one connection may be held to less than the link has: by a hash over several paths, or by a policy
WINDOW_SECONDS = 0.02
WARM_WINDOWS = 2  # of a transfer: TCP starts slowly
MOST_MILLISECONDS = 1000
MOST_MACHINE_MILLISECONDS = 2000
MOST_TURNS = 8
MOST_ORDER_BYTES = 1 << 16
MOST_WHY = 200
CONTROL, THERE, BACK = 0, 1, 2  # what a connection is for
_GO, _END = b"go-ahead", b"no-more!"
_CHUNK = 1 << 18
_TIMES = struct.Struct("168xQQQ")  # microseconds, in struct tcp_info: busy_time, rwnd_limited and sndbuf_limited


class Order:
    """What this pod has to measure."""

    def __init__(self, content):  # type: (dict[str, Any]) -> None
        self.number = int(content["number"])
        self.token = str(content["token"]).encode("ascii")
        self.own = int(content["own"])
        self.seconds = min(MOST_MILLISECONDS, int(content["milliseconds"])) / 1000.0
        self.turns = list(content["turns"])[:MOST_TURNS]
        self.machine_seconds = min(MOST_MACHINE_MILLISECONDS, int(content.get("machine_milliseconds", 0))) / 1000.0


def wait_for_order(path, number, door):  # type: (str, int, Door) -> Order | None
    """Return the order of that number when it is there; None if it does not come."""
    until = time.monotonic() + ORDER_SECONDS
    while time.monotonic() < until:
        try:
            with Path(path).open("rb") as file:
                order = Order(json.loads(file.read(MOST_ORDER_BYTES).decode()))
            if order.number == number:
                return order
        except (OSError, ValueError, KeyError, TypeError):  # not there yet, or of another version
            pass
        door.wait(LOOK_SECONDS)
    return None


def measure(order, door):  # type: (Order, Door) -> list[dict[str, Any]]
    """Measure the links of the order, one a turn; a link that fails is reported, and stops no other."""
    began, found = time.monotonic(), []
    for turn in order.turns:
        number = int(turn["turn"])
        # The turns end at fixed times, so that one link that fails does not delay all others.
        until = began + (number + 1) * TURN_SECONDS
        link = _Link(order, door, turn, until)
        result = {"peer": int(turn["peer"])}  # type: dict[str, Any]
        try:
            result.update(link.dial() if turn["dials"] else link.accept())
        except (OSError, RefusedError) as error:
            result["why"] = ("%s: %s" % (link.name, getattr(error, "strerror", "") or error))[:MOST_WHY]
        finally:
            link.close()
        found.append(result)
    return found


class _Link:
    """One link in one turn. Raises OSError or RefusedError where it cannot be measured by ``until``."""

    def __init__(self, order, door, turn, until):  # type: (Order, Door, dict[str, Any], float) -> None
        self._order, self._door, self._until = order, door, until
        self._turn, self._peer = int(turn["turn"]), int(turn["peer"])
        self._address = (str(turn["address"]), int(turn["port"]))
        self._open = []  # type: list[socket.socket]
        self.name = "%s port %d" % self._address if turn["dials"] else "from %s" % self._address[0]

    def dial(self):  # type: () -> dict[str, float]
        (control,) = self._connect(CONTROL, 1)
        if _read(control, self._until) != _GO:
            raise RefusedError("the peer is no executor of this check: it did not send the go-ahead")
        rtt = ping(control, self._until)
        echo(control, self._until)
        sent = send(self._connect(THERE, STREAMS), self._order.seconds, self._until)
        bits, receiving = receive(self._connect(BACK, STREAMS), self._order.seconds, self._until)
        return _result(bits, rtt, receiving, *sent)

    def accept(self):  # type: () -> dict[str, float]
        (control,) = self._let_in(CONTROL, 1)
        control.sendall(_GO)
        echo(control, self._until)
        rtt = ping(control, self._until)
        bits, receiving = receive(self._let_in(THERE, STREAMS), self._order.seconds, self._until)
        sent = send(self._let_in(BACK, STREAMS), self._order.seconds, self._until)
        return _result(bits, rtt, receiving, *sent)

    def close(self):  # type: () -> None
        for each in self._open:
            each.close()

    def _connect(self, kind, many):  # type: (int, int) -> list[socket.socket]
        made = []
        for _ in range(many):
            made.append(socket.create_connection(self._address, remaining(self._until)))
            self._open.append(made[-1])
            made[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made[-1].sendall(self._door.hello(self._order.token, (self._order.own, self._turn, kind)))
        return made

    def _let_in(self, kind, many):  # type: (int, int) -> list[socket.socket]
        found = self._door.let_in(self._order.token, (self._peer, self._turn, kind), many, self._until)
        self._open += found
        return found


def _result(bits, rtt, receiving, sending, held):  # type: (float, float, float, float, float) -> dict[str, float]
    return {
        "bits": round(bits),
        "rtt_us": round(1e6 * rtt),
        "receiving": round(receiving, 3),
        "sending": round(sending, 3),
        "held": round(held, 3),
    }


class Busy:
    """Which part of the time since its making this process computed, or waited for a CPU."""

    def __init__(self):  # type: () -> None
        self._began, self._before = time.monotonic(), _busy_seconds()

    def share(self):  # type: () -> float
        return min(1.0, (_busy_seconds() - self._before) / self.seconds())

    def seconds(self):  # type: () -> float
        return max(1e-6, time.monotonic() - self._began)


def _busy_seconds():  # type: () -> float
    try:
        computed, waited = Path("/proc/self/schedstat").read_text().split()[:2]
        return (int(computed) + int(waited)) / 1e9
    except (OSError, ValueError):  # the kernel does not count it
        return time.process_time()


def ping(peer, until):  # type: (socket.socket, float) -> float
    """Return the lower quartile of the round trips, seconds: another process on a CPU makes some longer, none shorter.

    Each has random content, so that the peer cannot answer before it has received it.
    """
    trips = []  # type: list[float]
    ends = time.monotonic() + PING_SECONDS
    while len(trips) < PINGS and (len(trips) < LEAST_PINGS or time.monotonic() < ends):
        sent = os.urandom(len(_END))
        began = time.perf_counter()
        peer.settimeout(remaining(until))
        peer.sendall(sent)
        if not hmac.compare_digest(_read(peer, until), sent):
            raise RefusedError("the peer returned other bytes than it was sent")
        trips.append(time.perf_counter() - began)
    peer.sendall(_END)
    return sorted(trips)[len(trips) // 4]


def echo(peer, until):  # type: (socket.socket, float) -> None
    """Answer the peer's pings until it has enough."""
    while True:
        got = _read(peer, until)
        if got == _END:
            return
        peer.settimeout(remaining(until))
        peer.sendall(got)


def _read(peer, until):  # type: (socket.socket, float) -> bytes
    """Return the peer's next message."""
    got = b""
    while len(got) < len(_END):
        peer.settimeout(remaining(until))
        part = peer.recv(len(_END) - len(got))
        if not part:
            raise RefusedError("the peer closed the connection after %d of %d bytes" % (len(got), len(_END)))
        got += part
    return got


def send(streams, seconds, until):  # type: (list[socket.socket], float, float) -> tuple[float, float]
    """Send until the receiver has enough and resets the connections.

    Return how busy this end was, and which part of the time the network held the bytes up; -1 where it is not known.
    """
    chunk, busy = memoryview(bytes(_CHUNK)), Busy()
    until = min(until, time.monotonic() + seconds + 1.0)  # the receiver's time begins with the first byte
    for stream in streams:
        stream.setblocking(False)
    living = streams
    # The receiver ends the transfer by a reset, so one lost connection means the end for all.
    while len(living) == len(streams):
        for stream in select.select([], living, [], remaining(until))[1]:
            try:
                stream.send(chunk)
            except BlockingIOError:
                pass
            except OSError:  # it is reset
                living = [each for each in living if each is not stream]
    return busy.share(), statistics.median(_held_seconds(each) for each in streams) / busy.seconds()


def _held_seconds(stream):  # type: (socket.socket) -> float
    """Return for how long a connection had bytes to bring away and neither its receiver nor its buffer was in the way.

    The kernel keeps these times since 4.10 (``struct tcp_info``); a negative number where it does not.
    """
    info = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TIMES.size)
    if len(info) < _TIMES.size:
        return -1.0
    sending, by_receiver, by_buffer = _TIMES.unpack(info)
    return float(sending - by_receiver - by_buffer) / 1e6


def receive(streams, seconds, until):  # type: (list[socket.socket], float, float) -> tuple[float, float]
    """Return the bits received a second, the median of windows, and how busy this end was. Reset the connections.

    A window ends with the first arrival after its time: who is not let run for a while finds all that has come
    meanwhile, and a long window.
    """
    buffer = bytearray(_CHUNK)
    for stream in streams:
        stream.setblocking(False)
    waited = remaining(until)
    # The time begins with the first byte: the peer may come to its turn later.
    if not _arrived(streams, buffer, waited):
        raise TimeoutError("no data from the peer within %.1f s" % waited)
    began = opened = now = time.monotonic()
    windows, got, busy = [], 0, Busy()  # type: list[float], int, Busy
    while now < began + seconds:
        remaining(until)
        part = _arrived(streams, buffer, began + seconds - now)
        got += part
        now = time.monotonic()
        if now - opened >= WINDOW_SECONDS and (part or now >= began + seconds):
            windows.append(8 * got / (now - opened))
            opened, got = now, 0
    share = busy.share()
    for stream in streams:
        # A reset drops what is still in buffers; a normal close would first send it, into the next turn.
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stream.close()
    return statistics.median(windows[WARM_WINDOWS:] or windows or [0.0]), share


def _arrived(streams, buffer, seconds):  # type: (list[socket.socket], bytearray, float) -> int
    """Return how many bytes have come; 0 where none do for so long."""
    got = 0
    for stream in select.select(streams, [], [], seconds)[0]:
        try:
            part = stream.recv_into(buffer)
        except BlockingIOError:
            continue
        if not part:
            raise RefusedError("the peer closed a connection before the transfer was over")
        got += part
    return got


def write(path, content):  # type: (str, dict[str, Any]) -> None
    """Let the whole content appear at once: a process that waits for the file is woken by its new name."""
    fresh = Path(path + ".new")
    fresh.write_text(json.dumps(content))
    fresh.replace(path)


def main(arguments):  # type: (list[str]) -> int
    """Open the port, wait for the order, measure, and write the result."""
    number, order_path, result_path = int(arguments[0]), arguments[1], arguments[2]
    library = machine.backend(machine.SMALL) if arguments[3:] == ["machine"] else None  # now: later, ranks stand still
    door = Door()
    found = {"number": number, "port": door.port}  # type: dict[str, Any]
    write(result_path, found)
    order = wait_for_order(order_path, number, door)
    if order is None:
        return 0  # no order has come: the ranks start without it
    began = time.monotonic()
    if library is not None and order.machine_seconds > 0:
        found["machine"] = machine.run(library, order.machine_seconds, smoke=True)
    found["links"] = measure(order, door)
    found["seconds"] = round(time.monotonic() - began, 3)
    write(result_path, found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
