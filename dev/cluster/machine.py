"""Check what the machine must offer before anything starts: each refusal says what is wrong and what to do."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys
from collections.abc import Iterable
from pathlib import Path

from dev.cluster import cgroups, packages
from dev.cluster.layout import (
    API_PORT,
    CACHE,
    ETCD_PEER_PORT,
    ETCD_PORT,
    GATEWAY,
    NODE_SUBNET,
    POD_SUBNET,
    RUN,
    SERVICE_SUBNET,
    STATE,
)
from dev.cluster.process import ClusterError, Processes, locked, run, write_whole

_OWNER = RUN / "cache"  # which cache's cluster runs here: a machine has only one set of addresses and names
_PORTS = (
    ("127.0.0.1", ETCD_PORT),
    ("127.0.0.1", ETCD_PEER_PORT),
    ("127.0.0.1", 10257),  # kube-controller-manager
    ("127.0.0.1", 10259),  # kube-scheduler
    (GATEWAY, API_PORT),
    (GATEWAY, 53),
    (GATEWAY, 8181),  # CoreDNS's readiness
)


def check() -> None:
    """Check root, cgroups and Debian packages; install missing packages.

    Raises:
        ClusterError: something is missing that apt-get cannot install.
    """
    if os.geteuid() != 0:
        raise ClusterError("the local cluster needs root (namespaces, mounts, cgroups): run make as root")
    if not cgroups.v2() and not (cgroups.ROOT / "cpu").is_dir():
        raise ClusterError(f"no cpu controller in {cgroups.ROOT}: mount cgroup2, or the v1 controllers, there")
    packages.ensure(packages.FOR_RUN)


def check_owner() -> None:
    """Refuse to touch the running cluster of another cache; remove what a dead cluster left.

    Raises:
        ClusterError: another cache's cluster runs, or a command of it is under way; the message says how to stop it.
    """
    owner = Path(_OWNER.read_text()) if _OWNER.exists() else CACHE
    if owner == CACHE or not owner.exists():
        return
    state = owner / "cluster" / STATE.name
    if locked(owner) or Processes(state).any_alive():
        raise ClusterError(f"the cluster of another cache runs here: FALCON_CACHE={owner} make cluster-down stops it")
    print(f"cluster: removing what the dead cluster of {owner} left", flush=True)
    run("env", f"FALCON_CACHE={owner}", sys.executable, "-m", "dev.cluster", "down")


def claim() -> None:
    """Reserve this machine's addresses and names for this cache's cluster until ``RUN`` is removed."""
    write_whole(_OWNER, str(CACHE))


def check_addresses() -> None:
    """Check that no route of the machine covers the cluster's addresses.

    Call it while the cluster's own routes do not exist.

    Raises:
        ClusterError: a route covers some of the addresses.
    """
    table = run("ip", "-4", "-oneline", "route", "show").splitlines()
    if taken := overlapping(table, (NODE_SUBNET, POD_SUBNET, SERVICE_SUBNET)):
        raise ClusterError(f"the cluster's addresses are in use: route {taken!r}; remove it (a VPN? another cluster?)")


def overlapping(routes: Iterable[str], subnets: Iterable[str]) -> str | None:
    """Return the first line of ``ip route`` whose destination overlaps a subnet; the default route does not count."""
    ours = [ipaddress.IPv4Network(subnet) for subnet in subnets]
    for line in routes:
        words = [word for word in line.split() if word not in ("unreachable", "blackhole", "prohibit")]
        with contextlib.suppress(ValueError):  # "default"
            if any(ipaddress.IPv4Network(words[0]).overlaps(subnet) for subnet in ours):
                return line.strip()
    return None


def check_ports() -> None:
    """Check that every port of the control plane is free; the bridge must have its address already.

    Raises:
        ClusterError: a port is taken; the message names who listens there.
    """
    for address, port in _PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError as error:
                who = run("ss", "-H", "-tlnp", f"sport = :{port}", check=False).strip() or "no process that ss can see"
                raise ClusterError(f"{address}:{port} cannot be used ({error.strerror}): {who}; stop it") from None
