"""Read from the kernel which TCP connections to a port are open."""

from __future__ import annotations

from pathlib import Path

_ESTABLISHED = "01"


def connections_to(*endpoints: str) -> set[str]:
    """Return the clients' local addresses of all connections to servers on this machine (host:port each).

    An etcd has one to itself, for its JSON gateway. A look takes the kernel up to 50 ms.
    """
    ports = {f"{int(endpoint.rpartition(':')[2]):04X}" for endpoint in endpoints}
    lines = [line for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    rows = [line.split() for line in lines]
    return {row[1] for row in rows if row[2].rpartition(":")[2] in ports and row[3] == _ESTABLISHED}
