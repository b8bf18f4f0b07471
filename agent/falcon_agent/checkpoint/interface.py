"""Find the address of the network interface that a job names for its copies."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import Final

_SIOCGIFADDR: Final = 0x8915
_REQUEST: Final = struct.Struct("16s24x")  # ifreq: the name, and room for a socket address
_ADDRESS: Final = slice(20, 24)  # of IPv4, in that
_IPV6: Final = Path("/proc/net/if_inet6")
_GLOBAL: Final = "00"  # scope


class NoAddressError(Exception):
    """The pod has no such interface, or the interface has no address. The message names the field and the remedy."""


def address_of(interface: str) -> str:
    """Return the interface's address, of IPv4 where it has one. Raises :class:`NoAddressError`."""
    found = _ipv4(interface) or _ipv6(interface)
    if found:
        return found
    names = sorted(name for _, name in socket.if_nameindex())
    problem = "has no address" if interface in names else f"is none of this pod's, which are {', '.join(names)}"
    raise NoAddressError(
        f"spec.checkpoint.interface: {interface} {problem}; name an interface that all pods of the job have"
    )


def _ipv4(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, contextlib.suppress(OSError):
        answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, _REQUEST.pack(interface.encode()))
        return socket.inet_ntoa(answer[_ADDRESS])
    return ""


def _ipv6(interface: str) -> str:
    """Return a global address: one of the link alone would not do for a peer without the name of its interface."""
    with contextlib.suppress(OSError):
        for line in _IPV6.read_text().splitlines():
            digits, _, _, scope, _, name = line.split()
            if name == interface and scope == _GLOBAL:
                return str(ipaddress.IPv6Address(bytes.fromhex(digits)))
    return ""
