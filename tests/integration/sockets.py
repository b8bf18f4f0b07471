"""Read from the kernel which TCP connections to a port are open."""

from __future__ import annotations

from pathlib import Path

_ESTABLISHED = "01"


def connections_to(endpoint: str) -> set[str]:
    """Return the clients' local addresses of all connections to a server on this machine (host:port).

    An etcd has one to itself, for its JSON gateway.
    """
    port = f"{int(endpoint.rpartition(':')[2]):04X}"
    lines = [line for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    rows = [line.split() for line in lines]
    return {row[1] for row in rows if row[2].endswith(f":{port}") and row[3] == _ESTABLISHED}
