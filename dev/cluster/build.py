"""Build the cluster's binaries once, from pinned Go modules (``tools/*/go.mod``) into the cache.

A tool is rebuilt only when its folder or its recipe changes: the stamp is their hash. The cluster runs one version of
Kubernetes; of others, ``make test-versions`` builds what a test of the API needs.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from dev.cluster import packages
from dev.cluster.layout import BIN, CACHE
from dev.cluster.process import ClusterError

TOOLS = Path(__file__).resolve().parent / "tools"
_PAUSE_SOURCE = TOOLS / "pause" / "pause.c"
KUBERNETES_VERSION = "1.36.3"
_PINNED_KUBERNETES = re.compile(r"^\s*k8s\.io/kubernetes v(\S+)", re.MULTILINE)
_CONTAINERD = "github.com/containerd/containerd/v2/cmd"


def _kubernetes_flags(version: str) -> str:
    """Return the linker flags by which a binary knows its version, such as ``1.36.3``."""
    major, minor, _ = version.split(".")
    package = "k8s.io/component-base/version"
    return f"-X {package}.gitVersion=v{version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"


@dataclass(frozen=True)
class Tool:
    """A Go module and its packages by the name of the binary."""

    folder: str
    packages: dict[str, str]
    ldflags: str = ""
    cgo: bool = False
    tags: str = ""

    def stamp(self) -> str:
        digest = hashlib.sha256(repr(self).encode())
        for path in sorted((TOOLS / self.folder).iterdir()):
            digest.update(path.read_bytes())
        return digest.hexdigest()[:16]


ALL = (
    Tool("etcd", {"etcd": "."}),
    Tool("etcdctl", {"etcdctl": "go.etcd.io/etcd/etcdctl/v3"}),
    Tool(
        "kubernetes",
        {
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in (
                "kube-apiserver",
                "kubectl",
                "kube-controller-manager",
                "kube-scheduler",
                "kubelet",
                "kube-proxy",
            )
        },
        ldflags=_kubernetes_flags(KUBERNETES_VERSION),
    ),
    # without these flags `helm template` believes in Kubernetes 1.20
    Tool(
        "helm",
        {"helm": "helm.sh/helm/v3/cmd/helm"},
        ldflags="-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 "
        "-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36",
    ),
    Tool(
        "containerd",
        {name: f"{_CONTAINERD}/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
        ldflags="-X github.com/containerd/containerd/v2/version.Version=2.4.2",
    ),
    Tool("runc", {"runc": "github.com/opencontainers/runc"}, cgo=True, tags="seccomp"),
    Tool("coredns", {"coredns": "."}),
    # for the tests of the anomaly service; each way to find targets would bring a cloud's libraries
    Tool("prometheus", {"prometheus": "github.com/prometheus/prometheus/cmd/prometheus"}, tags="remove_all_sd"),
)


def build_all() -> None:
    """Build what is missing or stale. Print a line for each binary.

    Raises:
        ClusterError: Go is missing, or a build failed (the message ends with the compiler's last lines).
    """
    BIN.mkdir(parents=True, exist_ok=True)
    stale = [tool for tool in ALL if not _fresh(tool)]
    if stale or not _pause_fresh():
        packages.ensure(packages.FOR_BUILD)
    for tool in stale:
        _build_tool(tool, BIN)
    _build_pause()


def build_api(minor: str) -> None:
    """Build kube-apiserver and kubectl of a minor version, such as ``1.33``, and link them in ``BIN/<minor>``.

    Raises:
        ClusterError: no module pins this version, Go is missing, or a build failed.
    """
    _build_tool(_api_tool(minor), BIN / minor)


def _api_tool(minor: str) -> Tool:
    if KUBERNETES_VERSION.startswith(f"{minor}."):
        return next(tool for tool in ALL if tool.folder == "kubernetes")
    folder = f"kubernetes-{minor}"
    module = TOOLS / folder / "go.mod"
    pinned = _PINNED_KUBERNETES.search(module.read_text()) if module.exists() else None
    if pinned is None:
        raise ClusterError(f"no module pins Kubernetes {minor}: add dev/cluster/tools/{folder} (docs/developer.md)")
    commands = {name: f"k8s.io/kubernetes/cmd/{name}" for name in ("kube-apiserver", "kubectl")}
    return Tool(folder, commands, ldflags=_kubernetes_flags(pinned[1]))


def _build_tool(tool: Tool, links: Path) -> None:
    """Build what the cache lacks of a tool, then link its binaries in a folder."""
    if shutil.which("go") is None:
        raise ClusterError("go is not on PATH: install Go 1.26 or newer; Kubernetes is built from Go modules")
    target = _folder(tool)
    for folder in (target, links):
        folder.mkdir(parents=True, exist_ok=True)
    for name, package in tool.packages.items():
        _build(tool, name, package, target)
    for name in tool.packages:
        link = links / f".{name}.new"
        link.unlink(missing_ok=True)
        link.symlink_to(target / name)
        link.rename(links / name)


def _folder(tool: Tool) -> Path:
    return CACHE / "tools" / f"{tool.folder}-{tool.stamp()}"


def _fresh(tool: Tool) -> bool:
    folder = _folder(tool)
    return all((folder / name).exists() and (BIN / name).resolve() == folder / name for name in tool.packages)


def _build(tool: Tool, name: str, package: str, target: Path) -> None:
    if (target / name).exists():
        return
    started = time.monotonic()
    print(f"  building {name} …", end="", flush=True)
    command = ["go", "build", "-ldflags", f"-s -w {tool.ldflags}".strip()]
    if tool.tags:
        command += ["-tags", tool.tags]
    done = subprocess.run(
        [*command, "-o", str(target / f".{name}"), package],
        cwd=TOOLS / tool.folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CGO_ENABLED": "1" if tool.cgo else "0", "GOFLAGS": "-buildvcs=false"},
    )
    if done.returncode != 0:
        raise ClusterError(f"\nbuilding {name} failed:\n" + "\n".join(done.stderr.splitlines()[-15:]))
    (target / f".{name}").rename(target / name)
    print(f" {time.monotonic() - started:.0f} s", flush=True)


def _pause_fresh() -> bool:
    target = BIN / "pause"
    return target.exists() and target.stat().st_mtime >= _PAUSE_SOURCE.stat().st_mtime


def _build_pause() -> None:
    """Build the pod sandbox's process, which waits for a signal and reaps children.

    The binary is static, so that its image is a single file.
    """
    if _pause_fresh():
        return
    target = BIN / "pause"
    command = ["cc", "-static", "-Os", "-s", "-o", str(target), str(_PAUSE_SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"building pause failed (is a C compiler with a static libc installed?):\n{done.stderr}")
