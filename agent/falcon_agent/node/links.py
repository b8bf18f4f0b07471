"""Read InfiniBand and RoCE ports from sysfs (Linux: Documentation/ABI/stable/sysfs-class-infiniband).

A port that was never up since the daemon's start is not missed: many adapters have a port without a cable. Virtual
functions are left out, since they come and go with the pods that use them, and so is a port that a person or a network
plugin has switched off. What cannot be read is unknown, never zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from falcon_agent.node.problems import Seen

CLASS = "class/infiniband"  # under the mount of sysfs
DOWN_SECONDS = 60.0  # a port that is down for less flaps; switches that restart take longer
SYMBOL_ERRORS = 10  # between two readings; a link with forward error correction has none, an older one a few an hour
SENT_AGAIN = 100  # packets between two readings; a healthy fabric loses next to none, RoCE with congestion a few
_ACTIVE = 4  # IB_PORT_ACTIVE
_SWITCHED_OFF = 3  # IB_PORT_PHYS_STATE_DISABLED
_UP = 1  # IFF_UP of a network interface's flags
_RATE = re.compile(r"([\d.]+) Gb/sec")
_FLAPS = ("link_downed", "link_error_recovery")
_WARNINGS = {
    "symbol_error": SYMBOL_ERRORS,
    "local_link_integrity_errors": 1,
    "local_ack_timeout_err": SENT_AGAIN,  # no acknowledgement came in time
    "packet_seq_err": SENT_AGAIN,  # the receiver missed a packet
}


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of a port; None: unknown."""

    name: str  # device/port
    state: int | None = None  # 1 down … 4 active
    wanted: bool | None = None  # switched on by the node's administrator
    rate: float | None = None  # Gbit/s
    lanes: tuple[int, int] | None = None  # of PCIe: in use, and possible for both the adapter and its slot
    counters: Mapping[str, int] = {}


def read_ports(sysfs: Path) -> list[Port]:
    """Read all ports; none where there is no such device."""
    devices = [device for device in _entries(sysfs / CLASS) if not (device / "device/physfn").exists()]
    return [_port(device, port) for device in devices for port in _entries(device / "ports")]


def _port(device: Path, port: Path) -> Port:
    rate = _RATE.search(_text(port / "rate") or "")
    return Port(
        name=f"{device.name}/{port.name}",
        state=_number(port / "state"),
        wanted=_wanted(device, port),
        rate=float(rate[1]) if rate is not None else None,
        lanes=_lanes(device / "device"),
        counters=dict(_counters(port)),
    )


def _wanted(device: Path, port: Path) -> bool | None:
    """Return whether the port is switched on. RoCE: by its interface; without carrier a port reads "disabled", too."""
    if _text(port / "link_layer") == "InfiniBand":
        physical = _number(port / "phys_state")
        return None if physical is None else physical != _SWITCHED_OFF
    for interface in _entries(device / "device/net"):
        if _number(interface / "dev_port") == int(port.name) - 1:
            flags = _text(interface / "flags")
            return None if flags is None else bool(int(flags, 16) & _UP)
    return None  # in the network namespace of a pod


def _counters(port: Path) -> Iterator[tuple[str, int]]:
    for folder in ("counters", "hw_counters"):
        for name in (*_FLAPS, *_WARNINGS):
            value = _number(port / folder / name)
            if value is not None:
                yield name, value


def _lanes(device: Path) -> tuple[int, int] | None:
    """Return the PCIe lanes in use, and the most that adapter and slot both have. 0 is unknown."""
    own = device.resolve()
    used, most, slot = (
        _number(folder / name)
        for folder, name in (
            (own, "current_link_width"),
            (own, "max_link_width"),
            (own.parent, "max_link_width"),
        )
    )
    # A slot with fewer lanes than the adapter is how the machine was built, and no fault.
    return (used, min(most, slot)) if used and most and slot else None


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _number(path: Path) -> int | None:
    """Return the number that a file begins with (``4: ACTIVE``: 4); None for none."""
    try:
        return int((_text(path) or "").partition(":")[0])
    except ValueError:
        return None


class Links:
    """The ports over time: each reading is compared with those before it."""

    def __init__(self) -> None:
        self._last: dict[str, Port] = {}
        self._best: dict[str, float] = {}  # the highest rate seen
        self._down: dict[str, float] = {}  # of a port that was up: since when it is not

    def remember(self, text: str) -> None:
        """Take over from the daemon before this one that a port was up: ``text`` is what it wrote of the port."""
        name, colon, _ = text.partition(":")
        if colon:
            self._best.setdefault(name, 0.0)

    def feed(self, ports: Iterable[Port], at: float) -> list[Seen]:
        """Judge a reading. Return what is wrong with it."""
        now = {port.name: port for port in ports}
        seen = [each for port in now.values() for each in self._judge(port, at)]
        self._last = now
        return seen

    def _judge(self, port: Port, at: float) -> Iterator[Seen]:
        yield from self._state(port, at)
        if port.lanes is not None and port.lanes[0] < port.lanes[1]:
            used, most = port.lanes
            yield Seen("NicDegraded", f"{port.name}: {used} of {most} PCIe lanes are in use", at)
        before = self._last.get(port.name)
        if before is not None:
            yield from _growth(before, port, at)

    def _state(self, port: Port, at: float) -> Iterator[Seen]:
        """Judge whether the port is up, and how fast."""
        if port.state == _ACTIVE:
            self._down.pop(port.name, None)
            if port.rate is not None:
                # sysfs does not say how fast the port should be; the best rate seen is the reference.
                best = self._best[port.name] = max(port.rate, self._best.get(port.name, 0.0))
                if port.rate < best:
                    yield Seen("NicDegraded", f"{port.name}: {port.rate:g} Gb/s instead of {best:g} Gb/s", at)
        elif not port.wanted:
            self._best.pop(port.name, None)  # switched on again, it may have another speed
            self._down.pop(port.name, None)
        # Only a port that was up can be missed, and only after a while: short breaks pass by themselves.
        elif port.state is not None and port.name in self._best:
            since = self._down.setdefault(port.name, at)
            down = at - since >= DOWN_SECONDS
            yield Seen("LinkDown" if down else "LinkFlapping", f"{port.name}: the port is down", at)


def _growth(before: Port, port: Port, at: float) -> Iterator[Seen]:
    """Judge the counters that have grown; one that has fallen starts from 0."""
    for name, value in port.counters.items():
        grown = value - before.counters.get(name, value)
        if grown >= _WARNINGS.get(name, 1):
            kind = "LinkFlapping" if name in _FLAPS else "HardwareWarning"
            yield Seen(kind, f"{port.name}: {name} grew by {grown}", at)
