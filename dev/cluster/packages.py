"""Install the Debian packages that building and running the cluster take, where they are missing.

``python -m dev.cluster.packages`` installs those of the integration tests.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from dev.cluster.process import ClusterError, run

# A path, or a program looked up on PATH, and the package that brings it.
FOR_BUILD: Mapping[str, str] = {
    "cc": "gcc",
    "pkg-config": "pkg-config",
    "/usr/include/stdlib.h": "libc6-dev",
    "/usr/include/seccomp.h": "libseccomp-dev",
}
FOR_RUN: Mapping[str, str] = {
    "ip": "iproute2",
    "tc": "iproute2",
    "ss": "iproute2",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "nsenter": "util-linux",
    "sysctl": "procps",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
}
FOR_TEST: Mapping[str, str] = {
    f"/lib/ld-musl-{platform.machine()}.so.1": "musl",  # another C library, in which the shim must not be noticed
}


def missing(needed: Mapping[str, str]) -> list[str]:
    """Return the packages that provide what is missing."""
    return sorted({package for thing, package in needed.items() if not _exists(thing)})


def ensure(needed: Mapping[str, str]) -> None:
    """Install what is missing with apt-get.

    Raises:
        ClusterError: not root, no apt-get, or apt-get failed; the message names the packages.
    """
    wanted = missing(needed)
    if not wanted:
        return
    names = " ".join(wanted)
    if shutil.which("apt-get") is None:
        raise ClusterError(f"missing, and there is no apt-get to install it: {names} (Debian's names)")
    if os.geteuid() != 0:
        raise ClusterError(f"missing Debian packages: {names}; run as root, or: apt-get install {names}")
    print(f"cluster: installing Debian packages: {names} …", flush=True)
    _apt("update", "-qq")
    _apt("install", "-y", "-qq", "--no-install-recommends", *wanted)


def _exists(thing: str) -> bool:
    return Path(thing).exists() if thing.startswith("/") else shutil.which(thing) is not None


def _apt(*arguments: str) -> None:
    words: Iterable[str] = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", *arguments)
    run(*words, timeout_seconds=900)


if __name__ == "__main__":
    try:
        ensure(FOR_TEST)
    except ClusterError as error:
        raise SystemExit(str(error)) from None
