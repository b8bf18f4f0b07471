"""Read counters of the pod's network: TCP, by the kernel, and RDMA adapters. What cannot be read is None, not 0.

The agent shares the pod's network. With ``hostNetwork`` the counters are the machine's. An adapter is seen where the
pod has its device: its counters stand under /sys/class/infiniband (mlx5, and others with the same names).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from falcon_core.wire.network import NetworkCounters

SNMP: Final = Path("/proc/net/snmp")
DEVICES: Final = Path("/proc/net/dev")
ADAPTERS: Final = Path("/sys/class/infiniband")
CONGESTED: Final = ("rp_cnp_handled",)
FAULTY: Final = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err")


class Traffic(NamedTuple):
    """Bytes since the pod's network began, of all its interfaces but the loopback."""

    received: int
    sent: int


def read_traffic(devices: Path = DEVICES) -> Traffic | None:
    """Read the bytes now; None where they cannot be read."""
    received = sent = 0
    try:
        for line in devices.read_text().splitlines()[2:]:  # two lines of headings
            name, _, values = line.partition(":")
            if name.strip() != "lo":
                columns = values.split()
                received, sent = received + int(columns[0]), sent + int(columns[8])
    except (OSError, ValueError, IndexError):
        return None
    return Traffic(received, sent)


def read_counters(snmp: Path = SNMP, adapters: Path = ADAPTERS) -> NetworkCounters:
    """Read all counters now."""
    tcp = _tcp(snmp)
    return NetworkCounters(
        sent=tcp.get("OutSegs"),
        again=tcp.get("RetransSegs"),
        congested=_sum(adapters, CONGESTED),
        faulty=_sum(adapters, FAULTY),
    )


def _tcp(path: Path) -> dict[str, int]:
    """Read the two lines ``Tcp:``, the first with names and the second with values; empty where they are not there."""
    try:
        lines = [line.split() for line in path.read_text().splitlines() if line.startswith("Tcp:")]
        names, values = lines
        return {name: int(value) for name, value in zip(names[1:], values[1:], strict=True)}
    except (OSError, ValueError):
        return {}


def _sum(adapters: Path, names: tuple[str, ...]) -> int | None:
    """Return the sum of counters over all ports of all adapters; None where none has any of them."""
    found = [
        value
        for name in names
        for path in sorted(adapters.glob(f"*/ports/*/hw_counters/{name}"))
        if (value := _number(path)) is not None
    ]
    return sum(found) if found else None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
