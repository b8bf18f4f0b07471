"""A real etcd for tests: plain or TLS with client certificates, one member or several, and its misfortunes.

A member keeps its ports while it is down. Timings are a fraction of etcd's defaults, so that elections are quick;
fsync is off, which only a power failure would notice.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from falcon_etcd import Client, Tls
from tests.integration.pki import Pki
from tests.integration.ports import free_port

_STOP_SECONDS = 10


def etcd_binary() -> Path:
    """Return the project's own build. Raises FileNotFoundError with the remedy."""
    cache = Path(os.environ.get("FALCON_CACHE", Path.home() / ".cache/falcon"))
    binary = cache / "bin/etcd"
    if not binary.exists():
        raise FileNotFoundError(f"{binary} is missing: run `make cluster-build`")
    return binary


def _state(task: Path) -> str:
    """Return a thread's state as the kernel writes it, behind the parenthesised name."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


@dataclass
class Member:
    """One etcd process. Its name, ports and data stay over restarts."""

    name: str
    root: Path
    client_port: int = field(default_factory=free_port)
    peer_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    @property
    def data(self) -> Path:
        return self.root / self.name

    @property
    def log(self) -> Path:
        return self.root / f"{self.name}.log"

    def stop(self, by: signal.Signals = signal.SIGTERM) -> None:
        """End the process, if it runs, and wait for its end."""
        if self.process is None:
            return
        self.process.send_signal(by)
        if by is not signal.SIGKILL:
            self.process.send_signal(signal.SIGCONT)
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(_STOP_SECONDS)
        self.process = None


class EtcdServer:
    """A cluster of one or more members, started by :meth:`start`, ended by :meth:`stop`."""

    def __init__(self, root: Path, *, members: int = 1, pki: Pki | None = None, arguments: Sequence[str] = ()) -> None:
        self.root = root
        self.pki = pki
        self.token = "falcon-test"
        self.members = [Member(f"m{index}", root) for index in range(members)]
        self._arguments = list(arguments)

    @property
    def endpoints(self) -> list[str]:
        return [member.endpoint for member in self.members]

    def client(self, user: str = "root", *, call_timeout_seconds: float = 5.0) -> Client:
        """Return a client, with TLS that of ``user``'s certificate."""
        return Client(self.endpoints, self.tls(user), call_timeout_seconds)

    def tls(self, user: str) -> Tls | None:
        if self.pki is None:
            return None
        issued = self.pki.client(user)
        return Tls(ca=self.pki.ca, cert=issued.cert, key=issued.key)

    def start(self, *members: Member) -> None:
        """Start the given members that do not run, by default all. They serve as soon as a quorum runs."""
        for member in members or self.members:
            if member.process is None:
                self._start(member)

    def stop(self, *members: Member) -> None:
        for member in members or self.members:
            member.stop()

    def kill(self, *members: Member) -> None:
        """Send SIGKILL: no goodbye to clients, nothing flushed."""
        for member in members or self.members:
            member.stop(signal.SIGKILL)

    def wipe(self, *members: Member) -> None:
        """Send SIGKILL and lose the data."""
        self.kill(*members)
        for member in members or self.members:
            shutil.rmtree(member.data)

    def pause(self, *members: Member) -> None:
        """Send SIGSTOP: connections stay open, nothing answers."""
        for member in members or self.members:
            assert member.process is not None
            member.process.send_signal(signal.SIGSTOP)
            tasks = Path(f"/proc/{member.process.pid}/task")
            while any(_state(task) != "T" for task in tasks.iterdir()):
                time.sleep(0.001)

    def resume(self, *members: Member) -> None:
        for member in members or self.members:
            assert member.process is not None
            member.process.send_signal(signal.SIGCONT)

    def member_at(self, endpoint: str) -> Member:
        return next(member for member in self.members if member.endpoint == endpoint)

    def _start(self, member: Member) -> None:
        scheme = "https" if self.pki else "http"
        heartbeat_ms = (
            20 if len(self.members) == 1 else 50
        )  # several members on busy cores must not depose their leader
        cluster = ",".join(f"{m.name}=http://127.0.0.1:{m.peer_port}" for m in self.members)
        command = [
            # the kernel ends etcd with the test run, however that ends
            *("setpriv", "--pdeathsig", "KILL", str(etcd_binary())),
            *("--name", member.name, "--data-dir", str(member.data)),
            *("--listen-client-urls", f"{scheme}://{member.endpoint}"),
            *("--advertise-client-urls", f"{scheme}://{member.endpoint}"),
            *("--listen-peer-urls", f"http://127.0.0.1:{member.peer_port}"),
            *("--initial-advertise-peer-urls", f"http://127.0.0.1:{member.peer_port}"),
            *("--initial-cluster", cluster, "--initial-cluster-token", self.token),
            *("--heartbeat-interval", str(heartbeat_ms), "--election-timeout", str(10 * heartbeat_ms)),
            *("--unsafe-no-fsync", "--log-level", "warn"),
            *self._tls_arguments(),
            *self._arguments,
        ]
        with member.log.open("ab") as log:
            member.process = subprocess.Popen(command, stdout=log, stderr=log)

    def _tls_arguments(self) -> list[str]:
        if self.pki is None:
            return []
        issued = self.pki.server("localhost")
        files = ["--cert-file", str(issued.cert), "--key-file", str(issued.key), "--trusted-ca-file", str(self.pki.ca)]
        return [*files, "--client-cert-auth"]
