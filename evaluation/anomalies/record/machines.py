"""Make machines out of namespaces and cgroups, one for each pod, and break one of them. Takes root.

The recorder's process has a network of its own (``__main__``), in which it is the router between the machines. That
network ends with the process. A machine has a network, a volume of its own at ``VOLUME``, and a share of the CPUs. Its
pod has a cgroup within.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

VOLUME: Final = "/srv"
VOLUME_MIB: Final = 256
GATEWAY: Final = "10.124.0.1"  # the recorder's own address
PERIOD_US: Final = 100_000
CORES: Final = 0.5  # of a machine
POD_BYTES: Final = 2 << 30
MOST_PIDS: Final = 256
THIEVES: Final = 2
THIEF_WEIGHT: Final = 8  # pods
QUOTA_CORES: Final = 0.04
SLOW_LINK: Final = "2mbit"
LOST: Final = 0.05  # of the packets that a machine sends
# Of the ranks together, in plain tasks: they want little, and wait for what else the machine does no longer than on a
# node of their own.
WEIGHT: Final = 8
LEAVE_SECONDS: Final = 10.0
CGROUPS: Final = Path("/sys/fs/cgroup")
CONTROLLERS: Final = ("cpu", "cpuacct", "memory", "pids")
NEEDED: Final = ("ip", "tc", "iptables", "nsenter", "unshare", "setpriv")


def why_not() -> str:
    """Return why no machines can be made here; empty where they can."""
    if os.geteuid() != 0:
        return "namespaces and cgroups take root"
    missing = [name for name in NEEDED if shutil.which(name) is None]
    missing += [f"cgroup v1 controller {name}" for name in CONTROLLERS if not (CGROUPS / name).is_dir()]
    return f"not here: {', '.join(missing)}" if missing else ""


class Machine:
    """One of them. ``address``: of its pod."""

    def __init__(self, place: int, top: str) -> None:
        self.address, self._router = f"10.123.{place}.2", f"10.123.{place}.1"
        self._node = f"{top}/node-{place}"
        self._link = f"to-{place}"
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._holder = 0

    def make(self) -> None:
        mount = f"mount -t tmpfs -o size={VOLUME_MIB}m falcon {VOLUME} && echo made && exec sleep infinity"
        holder = self._help("unshare", "--net", "--mount", "sh", "-c", mount)
        assert holder.stdout is not None
        if holder.stdout.readline() != b"made\n":
            raise OSError(f"no volume was made at {VOLUME}")
        self._holder = holder.pid
        _run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        _run("ip", "address", "add", f"{self._router}/24", "dev", self._link)
        _run("ip", "link", "set", self._link, "up")
        for words in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"{self.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("route", "add", "default", "via", self._router),
        ):
            _run(*self.network(), "ip", *words)
        for controller in CONTROLLERS:
            (CGROUPS / controller / self._node / "pod").mkdir(parents=True)
        _limit(self._path("cpu"), CORES)
        (self._path("memory") / "pod/memory.limit_in_bytes").write_text(str(POD_BYTES))
        (self._path("pids") / "pod/pids.max").write_text(str(MOST_PIDS))

    def network(self) -> tuple[str, ...]:
        """Return the words before a command that is to run in the machine's network."""
        return ("nsenter", f"--net=/proc/{self._holder}/ns/net")

    def pod(self) -> tuple[str, ...]:
        """Return the words before the command that is to run as the machine's pod."""
        return (*self.network(), f"--mount=/proc/{self._holder}/ns/mnt", *self._inside("pod"))

    def _inside(self, name: str) -> tuple[str, ...]:
        files = " ".join(str(self._path(controller) / name / "cgroup.procs") for controller in CONTROLLERS)
        return ("sh", "-c", f'echo $$ | tee {files} >/dev/null && exec "$@"', "sh")

    def steal(self) -> None:
        """Let other processes of the machine want all of its CPUs."""
        for controller in CONTROLLERS:
            (self._path(controller) / "thief").mkdir()
        (self._path("cpu") / "thief/cpu.shares").write_text(str(1024 * THIEF_WEIGHT))
        for _ in range(THIEVES):
            self._help(*self._inside("thief"), "sh", "-c", "while :; do :; done")

    def limit(self) -> None:
        """Give the pod a quota that is far too small."""
        _limit(self._path("cpu") / "pod", QUOTA_CORES)

    def slow_link(self) -> None:
        """Hold the machine's traffic to a rate, both ways."""
        shape = ("root", "tbf", "rate", SLOW_LINK, "burst", "64kb", "latency", "50ms")
        _run("tc", "qdisc", "add", "dev", self._link, *shape)
        _run(*self.network(), "tc", "qdisc", "add", "dev", "eth0", *shape)

    def lose_packets(self) -> None:
        """Lose a share of the packets that the machine sends to others."""
        chance = ("-m", "statistic", "--mode", "random", "--probability", str(LOST))
        _run("iptables", "-w", "-A", "FORWARD", "-i", self._link, *chance, "-j", "DROP")

    def fill(self) -> None:
        """Let another process fill the volume, half a mebibyte a second."""
        write = f"while head -c 524288 /dev/zero >> {VOLUME}/fill; do sleep 1; done"
        self._help("nsenter", f"--mount=/proc/{self._holder}/ns/mnt", "sh", "-c", write)

    def remove(self) -> None:
        """End what runs there, and remove the cgroups."""
        for helper in self._helpers:
            helper.kill()
            helper.wait()
        for controller in CONTROLLERS:
            for name in ("pod", "thief", ""):
                _leave(self._path(controller) / name)

    def _path(self, controller: str) -> Path:
        return CGROUPS / controller / self._node

    def _help(self, *command: str) -> subprocess.Popen[bytes]:
        self._helpers.append(subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command], stdout=subprocess.PIPE))
        return self._helpers[-1]


@contextlib.contextmanager
def machines(count: int) -> Iterator[Sequence[Machine]]:
    """Yield so many machines, which the recorder's network joins."""
    top = f"falcon-record-{os.getpid()}"
    made = [Machine(place, top) for place in range(count)]
    try:
        for machine in made:
            machine.make()
        (CGROUPS / "cpu" / top / "cpu.shares").write_text(str(1024 * WEIGHT))
        yield made
    finally:
        for machine in made:
            machine.remove()
        for controller in CONTROLLERS:
            _leave(CGROUPS / controller / top)


def prepare_network() -> None:
    """Make this process's own network a router with an address for the gateway."""
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "address", "add", f"{GATEWAY}/32", "dev", "lo")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _limit(path: Path, cores: float) -> None:
    (path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
    (path / "cpu.cfs_quota_us").write_text(str(round(cores * PERIOD_US)))


def _leave(path: Path) -> None:
    """Kill what is left in a cgroup, and remove it."""
    deadline = time.monotonic() + LEAVE_SECONDS
    while path.is_dir():
        for pid in (path / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        try:
            path.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
