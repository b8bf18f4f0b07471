"""A network of its own for ranks, in which a peer's port can refuse connections: root and iptables."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path


class Network:
    """A loopback interface that no other test uses; ``command`` runs a program there."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self._path = Path(f"/proc/{self._holder.pid}/ns/net")
        deadline = time.monotonic() + 20
        while self._path.readlink() == Path("/proc/self/ns/net").readlink():
            assert time.monotonic() < deadline, "no network namespace was made"
            time.sleep(0.01)
        self._run("ip", "link", "set", "lo", "up")

    def command(self, *program: str) -> tuple[str, ...]:
        """Return the program's command line inside this network; the process stays the same."""
        return ("nsenter", f"--net={self._path}", *program)

    def refuse(self, but: int) -> None:
        """Refuse each new connection, except to the port ``but``."""
        rule = ("-p", "tcp", "--syn", "!", "--dport", str(but), "-j", "REJECT", "--reject-with", "tcp-reset")
        self._run("iptables", "-w", "-A", "OUTPUT", *rule)

    def admit(self) -> None:
        """Let all connections pass."""
        self._run("iptables", "-w", "-F", "OUTPUT")

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait(timeout=20)

    def _run(self, *program: str) -> None:
        subprocess.run(self.command(*program), check=True, capture_output=True)
