"""Up and down: up starts clean over whatever an interrupted run left, down leaves nothing but caches."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from dev.cluster import build, cgroups, controlplane, images, network, node, pki
from dev.cluster.layout import BIN, CLUSTER, FAULTS, KUBECONFIG, LOGS, RUN, Node, nodes
from dev.cluster.process import ClusterError, Processes, run, wait

_OPTIONS = CLUSTER / "options.json"
MAX_NODES = 12


class Options:
    """The shape of the cluster that runs, remembered for every later command."""

    def __init__(self, workers: int = 3, spares: int = 1, node_cores: float = 0.5) -> None:
        if workers < 1 or spares < 0 or workers + spares > MAX_NODES:
            raise ClusterError(f"--workers and --spares: want 1 … {MAX_NODES} nodes in all, at least one worker")
        if not 0.1 <= node_cores <= 64:
            raise ClusterError(f"--node-cores {node_cores}: want 0.1 … 64")
        self.workers, self.spares, self.node_cores = workers, spares, node_cores

    @staticmethod
    def load() -> Options:
        """What the last ``up`` was asked for; the defaults where there was none."""
        return Options(**json.loads(_OPTIONS.read_text())) if _OPTIONS.exists() else Options()

    def save(self) -> None:
        _OPTIONS.parent.mkdir(parents=True, exist_ok=True)
        _OPTIONS.write_text(json.dumps(vars(self)))

    def nodes(self) -> list[Node]:
        return nodes(self.workers, self.spares)


def up(options: Options) -> None:
    """A running cluster of this shape.

    Raises:
        ClusterError: the machine lacks something (and what to do), or a component did not come up (and its log's end).
    """
    _check_machine()
    started = time.monotonic()
    if _OPTIONS.exists() and vars(Options.load()) == vars(options) and healthy():
        print(f"the cluster is up already: export KUBECONFIG={KUBECONFIG}")
        return
    with _phase("binaries (built once, then reused)"):
        build.build_all()
    with _phase("removing what an earlier run left"):
        down(quiet=True)
    options.save()
    members = options.nodes()
    processes = Processes()
    try:
        with _phase("network, cgroups, containerd, API server"):
            pki.issue_all([member.name for member in members])
            network.create(members)
            for member in members:
                _prepare_store(member)
                cgroups.create(member)
                if member.role != "control":
                    cgroups.set_capacity(member, options.node_cores)
                node.start_containerd(member, processes)
            controlplane.start_api(processes)
            controlplane.start_rest(processes)
        with _phase("nodes"):
            for member in members:
                node.wait_containerd(member)
            images.load([images.pause_archive()], members)
            for member in members:
                node.start_kubelet(member, processes)
            names = {member.name for member in members}
            wait("every node is Ready", lambda: node.ready_nodes() >= names, 60, f"kubelet-{members[0].name}")
    except BaseException:
        print("cluster-up failed; `make cluster-down` removes what it started", flush=True)
        raise
    print(f"up in {time.monotonic() - started:.0f} s: {len(members)} nodes Ready\nexport KUBECONFIG={KUBECONFIG}")


def healthy() -> bool:
    """Whether everything that ``up`` started still runs and every node is Ready."""
    processes = Processes()
    members = Options.load().nodes()
    wanted = {name for member in members for name in node.process_names(member)} | set(controlplane.NAMES)
    if not all(processes.alive(name) for name in wanted) or not controlplane.api_ready():
        return False
    return node.ready_nodes() >= {member.name for member in members} and not FAULTS.exists()


def down(quiet: bool = False) -> None:
    """No process, namespace, mount, cgroup or interface of ours is left; binaries and node images stay cached."""
    processes = Processes()
    members = Options.load().nodes()
    for member in members:
        node.stop(member, processes)
    controlplane.stop(processes)
    processes.stop(processes.names)
    network.remove(members)
    shutil.rmtree(controlplane.data_folder(), ignore_errors=True)
    if quiet:  # a new cluster begins; otherwise the logs may say what went wrong
        shutil.rmtree(LOGS, ignore_errors=True)
    shutil.rmtree(RUN, ignore_errors=True)
    for path in (KUBECONFIG, FAULTS, _OPTIONS):
        path.unlink(missing_ok=True)
    if not quiet:
        print("the cluster is down; images and binaries stay in the cache (make clean-cache removes them)")


def status() -> str:
    """What runs, for a person."""
    if not _OPTIONS.exists():
        return "no cluster: make cluster-up"
    processes = Processes()
    lines = [f"export KUBECONFIG={KUBECONFIG}", ""]
    dead = [name for name in processes.names if not processes.alive(name)]
    lines.append(f"processes: {len(processes.names) - len(dead)} run" + (f"; DEAD: {', '.join(dead)}" if dead else ""))
    faults = json.loads(FAULTS.read_text()) if FAULTS.exists() else {}
    lines.append("faults: " + ("; ".join(f"{name}: {', '.join(sorted(f))}" for name, f in faults.items()) or "none"))
    if controlplane.api_ready():
        lines += ["", controlplane.kubectl("get", "nodes", "-o", "wide").rstrip()]
    else:
        lines.append("the API server does not answer: make cluster-up starts clean")
    return "\n".join(lines)


def _prepare_store(member: Node) -> None:
    """A store that was not left clean holds containers that no longer exist: start without it."""
    store = member.folder / "containerd"
    if store.exists() and not (member.folder / "clean").exists():
        shutil.rmtree(store)


@contextlib.contextmanager
def _phase(what: str) -> Iterator[None]:
    started = time.monotonic()
    print(f"cluster: {what} …", flush=True)
    yield
    print(f"cluster: {what}: {time.monotonic() - started:.1f} s", flush=True)


def _check_machine() -> None:
    if os.geteuid() != 0:
        raise ClusterError("the local cluster needs root (namespaces, mounts, cgroups): run make as root")
    packages = {
        "ip": "iproute2",
        "tc": "iproute2",
        "iptables": "iptables",
        "conntrack": "conntrack",
        "nsenter": "util-linux",
    }
    missing = {package for tool, package in packages.items() if shutil.which(tool) is None}
    if not Path("/usr/lib/cni/ptp").exists():
        missing.add("containernetworking-plugins")
    if not Path("/usr/include/seccomp.h").exists() and not (BIN / "runc").exists():
        missing |= {"libseccomp-dev", "pkg-config"}
    if missing:
        print(f"cluster: installing Debian packages: {' '.join(sorted(missing))}", flush=True)
        run("apt-get", "update", "-qq", timeout_seconds=300)
        run(*("apt-get", "install", "-y", "-qq", "--no-install-recommends"), *sorted(missing), timeout_seconds=600)
    if not any(cgroups.ROOT.iterdir()):
        raise ClusterError("/sys/fs/cgroup is empty: mount the cgroup hierarchies first")
