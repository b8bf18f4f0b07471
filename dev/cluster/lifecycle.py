"""Up and down: ``up`` removes what an interrupted run left and starts; ``down`` leaves nothing but caches."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator

from dev.cluster import build, cgroups, controlplane, images, machine, network, node, pki
from dev.cluster.layout import CLUSTER, FAULTS, KUBECONFIG, LOGS, RUN, Node, nodes
from dev.cluster.process import ClusterError, Processes, end_strays, exclusive, write_whole
from dev.cluster.traces import Traces

_OPTIONS = CLUSTER / "options.json"
MAX_NODES = 12


class Options:
    """The shape of the cluster that runs, saved for every later command."""

    def __init__(self, workers: int = 3, spares: int = 1, node_cores: float = 0.5) -> None:
        if workers < 1 or spares < 0 or workers + spares > MAX_NODES:
            raise ClusterError(f"--workers and --spares: want 1 … {MAX_NODES} nodes in all, at least one worker")
        if not 0.1 <= node_cores <= 64:
            raise ClusterError(f"--node-cores {node_cores}: want 0.1 … 64")
        self.workers, self.spares, self.node_cores = workers, spares, node_cores

    @staticmethod
    def load() -> Options:
        """Return the options of the last ``up``; the defaults where there was none."""
        return Options(**json.loads(_OPTIONS.read_text())) if _OPTIONS.exists() else Options()

    def save(self) -> None:
        write_whole(_OPTIONS, json.dumps(vars(self)))

    def nodes(self) -> list[Node]:
        return nodes(self.workers, self.spares)


def running() -> bool:
    """Check whether an ``up`` began and no ``down`` has ended since."""
    return _OPTIONS.exists()


def up(options: Options) -> None:
    """Start a cluster of this shape, unless it runs already.

    Raises:
        ClusterError: the machine lacks something (the message says what to do), or a component did not come up (the
            message holds the end of its log).
    """
    machine.check()
    started = time.monotonic()
    with exclusive():
        if running() and vars(Options.load()) == vars(options) and healthy():
            print(f"the cluster is up already\nexport KUBECONFIG={KUBECONFIG}")
            return
        machine.check_owner()
        with _phase("binaries (built once, then reused)"):
            build.build_all()
        with _phase("removing what an earlier run left"):
            _remove_all()
            shutil.rmtree(LOGS, ignore_errors=True)
        machine.check_addresses()
        options.save()
        machine.claim()
        Traces().remember()
        try:
            _start(options)
        except BaseException:
            print("cluster-up failed; `make cluster-down` removes what it started", flush=True)
            raise
    print(f"up in {time.monotonic() - started:.0f} s: {len(options.nodes())} nodes\nexport KUBECONFIG={KUBECONFIG}")


def _start(options: Options) -> None:
    members = options.nodes()
    processes = Processes()
    with _phase("network, cgroups, containerd, API server"):
        pki.issue_all([member.name for member in members])
        network.create(members)
        machine.check_ports()
        for member in members:
            cgroups.create(member)
            if member.role != "control":
                cgroups.set_capacity(member, options.node_cores)
            node.start_containerd(member, processes)
        controlplane.start_api(processes)
        controlplane.start_rest(processes)
    with _phase("nodes"):
        for member in members:
            node.wait_containerd(member, processes)
            node.forget_containers(member, processes)
        images.load([images.pause_archive()], members)
        for member in members:
            node.start_kubelet(member, processes)
        processes.wait(
            "nodes",
            lambda: ", ".join(f"{name} is not Ready" for name in node.not_ready(members)),
            60,
            [name for member in members for name in node.process_names(member)],
        )


def healthy() -> bool:
    """Check whether all that ``up`` started still runs, every node is Ready, and no node has a fault."""
    processes = Processes()
    members = Options.load().nodes()
    wanted = {name for member in members for name in node.process_names(member)} | set(controlplane.NAMES)
    if FAULTS.exists() or not all(processes.alive(name) for name in wanted) or controlplane.api_lacking():
        return False
    return not node.not_ready(members)


def down() -> None:
    """Remove the cluster's processes, namespaces, mounts, cgroups, interfaces and files; caches stay."""
    with exclusive():
        machine.check_owner()
        _remove_all()
    # The logs stay until the next up: they may say what went wrong.
    print("the cluster is down; images and binaries stay in the cache (make clean-cache removes them)")


def _remove_all() -> None:
    processes = Processes()
    members = Options.load().nodes()
    for member in members:
        node.stop(member, processes)
    controlplane.stop(processes)
    processes.stop(processes.names)
    end_strays()
    network.remove(members)
    Traces().remove()
    shutil.rmtree(controlplane.data_folder(), ignore_errors=True)
    shutil.rmtree(RUN, ignore_errors=True)
    for path in (KUBECONFIG, FAULTS, _OPTIONS):
        path.unlink(missing_ok=True)


def status() -> str:
    """Return a description of what runs, for a person."""
    if not running():
        return "no cluster: make cluster-up"
    processes = Processes()
    lines = [f"export KUBECONFIG={KUBECONFIG}", ""]
    dead = [name for name in processes.names if not processes.alive(name)]
    lines.append(f"processes: {len(processes.names) - len(dead)} run" + (f"; DEAD: {', '.join(dead)}" if dead else ""))
    faults = json.loads(FAULTS.read_text()) if FAULTS.exists() else {}
    lines.append("faults: " + ("; ".join(f"{name}: {', '.join(sorted(f))}" for name, f in faults.items()) or "none"))
    if lacking := controlplane.api_lacking():
        lines.append(f"the API server is not ready ({lacking}): make cluster-up starts clean")
    else:
        lines += ["", controlplane.kubectl("get", "nodes", "-o", "wide").rstrip()]
    return "\n".join(lines)


@contextlib.contextmanager
def _phase(what: str) -> Iterator[None]:
    started = time.monotonic()
    print(f"cluster: {what} …", flush=True)
    yield
    print(f"cluster: {what}: {time.monotonic() - started:.1f} s", flush=True)
