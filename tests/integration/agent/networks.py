"""Machines with a network each: namespaces that a switch joins, whose links can be made slow. Takes root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

NEEDED = ("ip", "tc", "nsenter")


def why_not() -> str:
    """Return why no such network can be made here; empty where it can."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if os.geteuid() != 0:
        return "a network of its own takes root"
    return f"not installed: {', '.join(missing)}" if missing else ""


def inside(namespace: str) -> list[str]:
    """Return the words before a command that is to run in a namespace."""
    return ["nsenter", f"--net=/run/netns/{namespace}"]


class Network:
    """Namespaces with an address each. Each has a link of its own to the switch."""

    def __init__(self, count: int) -> None:
        self._hub = f"falcon-{os.getpid()}"
        self.names = [f"{self._hub}-{place}" for place in range(count)]
        self.addresses = [f"10.123.0.{place + 1}" for place in range(count)]

    def make(self) -> None:
        """Make the namespaces, and the links between them."""
        for name in (self._hub, *self.names):
            _run("ip", "netns", "add", name)
            _run("ip", "-netns", name, "link", "set", "lo", "up")
        _run("ip", "-netns", self._hub, "link", "add", "switch", "type", "bridge")
        _run("ip", "-netns", self._hub, "link", "set", "switch", "up")
        for place, (name, address) in enumerate(zip(self.names, self.addresses, strict=True)):
            link = f"to-{place}"
            _run("ip", "-netns", name, "link", "add", "eth0", "type", "veth", "peer", link, "netns", self._hub)
            _run("ip", "-netns", self._hub, "link", "set", link, "master", "switch", "up")
            _run("ip", "-netns", name, "address", "add", f"{address}/24", "dev", "eth0")
            _run("ip", "-netns", name, "link", "set", "eth0", "up")

    def remove(self) -> None:
        """Remove what was made, as far as it is there."""
        for name in (self._hub, *self.names):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)

    def limit(self, place: int, rate: str) -> None:
        """Hold a machine's traffic to a rate such as ``20mbit``, both ways."""
        _shape(self.names[place], "eth0", rate)
        _shape(self._hub, f"to-{place}", rate)

    def limit_between(self, first: int, second: int, rate: str) -> None:
        """Hold what two machines send each other to a rate: by a cable of their own, beside the switch."""
        names = self.names[first], self.names[second]
        _run("ip", "-netns", names[0], "link", "add", "cable", "type", "veth", "peer", "cable", "netns", names[1])
        for own, place, peer in ((names[0], first, second), (names[1], second, first)):
            _run("ip", "-netns", own, "link", "set", "cable", "up")
            source = self.addresses[place]
            _run("ip", "-netns", own, "route", "add", self.addresses[peer], "dev", "cable", "src", source)
        _shape(names[0], "cable", rate)

    def refuse(self, place: int) -> None:
        """Let a machine refuse what others want of it, as a NetworkPolicy does; here by a route."""
        for peer, address in enumerate(self.addresses):
            if peer != place:
                _run("ip", "-netns", self.names[place], "route", "add", "prohibit", address)


@contextlib.contextmanager
def machines(count: int) -> Iterator[Network]:
    """Yield a network of so many machines."""
    network = Network(count)
    try:
        network.make()
        yield network
    finally:
        network.remove()


def _shape(namespace: str, device: str, rate: str) -> None:
    shape = ("tbf", "rate", rate, "burst", "64kb", "latency", "50ms")
    _run(*inside(namespace), "tc", "qdisc", "add", "dev", device, "root", *shape)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
