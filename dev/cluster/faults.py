"""Real faults, one function each; the demo, the tests and the command line share them.

A fault is written down before it is applied, so that ``heal`` can undo it from any process, even if the process that
applied it was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from dev.cluster import cgroups, network, node
from dev.cluster.layout import FAULTS, Node
from dev.cluster.lifecycle import Options, running
from dev.cluster.process import ClusterError, Processes, exclusive, write_whole

Faults = dict[str, dict[str, Any]]

PODS_SHARES = 1024


def slow(name: str, factor: float) -> None:
    """Leave the node's pods ``factor`` of their CPU, by quota.

    The quota is set on the node's capacity, so that new pods are slow too, and on each container, so that the
    container's own throttling counter shows it.
    """
    if not 0 < factor < 1:
        raise ClusterError(f"slow {name} {factor}: the factor is the share that is left, between 0 and 1")
    with exclusive():
        chosen = find(name)
        _undo_slow(chosen)  # factors do not multiply
        cores = Options.load().node_cores * factor
        before = cgroups.limits_for(chosen, cores)
        _note(name, "slow", {"factor": factor, "before": before})
        cgroups.limit(chosen, cores, before)


def compete(name: str, share: float = 0.67) -> None:
    """Start a process on the node, without any quota, that takes ``share`` of the node's capacity by its weight."""
    if not 0 < share < 1:
        raise ClusterError(f"compete {name} {share}: the share that the competitor takes is between 0 and 1")
    with exclusive():
        chosen = find(name)
        processes = Processes()
        _undo_compete(chosen, processes)
        pods = cgroups.pods_folder(chosen)
        _note(name, "compete", {"share": share, "weight": cgroups.weight(pods)})
        folder = cgroups.competitor_folder(chosen)
        cgroups.set_weight(pods, PODS_SHARES)
        cgroups.set_weight(folder, round(PODS_SHARES * share / (1 - share)))
        # One loop a core, and one more: a pod's thread must share its core, wherever it runs.
        loops = "while :; do :; done & " * (os.cpu_count() or 1)
        command = f"echo $$ > {folder}/cgroup.procs; {loops} while :; do :; done"
        processes.start(_competitor(name), ["sh", "-c", command])


def link(name: str, rate: str, peer: str = "") -> None:
    """Shape the node's link to a rate such as ``50mbit``.

    With ``peer``, another node, only what the pods of the two send each other is shaped.
    """
    with exclusive():
        chosen = find(name)
        other = find(peer) if peer else None
        _undo_link(chosen)
        _note(name, "link", {"rate": rate, "peer": peer})
        if other is None:
            network.limit(chosen, rate)
        else:
            network.limit_between(chosen, other, rate)


def cut(name: str, peer: str = "") -> None:
    """Take the node's link down: the node goes on running, but nothing can reach it.

    With ``peer``, another node, only the pods of the two cannot reach each other.
    """
    with exclusive():
        chosen = find(name)
        other = find(peer) if peer else None
        _undo_cut(chosen)
        _note(name, "cut", {"peer": peer})
        if other is None:
            network.set_link(chosen, up=False)
        else:
            network.set_link_between(chosen, other, up=False)


def kill(name: str) -> None:
    """Send SIGKILL to everything on the node at once: kubelet, containerd, every pod."""
    with exclusive():
        chosen = find(name)
        _note(name, "kill", {})
        node.lose(chosen, Processes())


def heal(name: str) -> None:
    """Undo every fault of the node; a killed node boots again. A node without faults, of any role, stays as it is."""
    with exclusive():
        faults = active().get(name, {})
        if not faults:
            return
        chosen = find(name)
        processes = Processes()
        _undo_cut(chosen)
        _undo_link(chosen)
        _undo_compete(chosen, processes)
        _undo_slow(chosen)
        if "kill" in faults:
            node.boot(chosen, processes)
        _forget(name)


def send_signal(name: str, text: str, number: int, pod_uid: str = "", *, oldest: bool = False) -> int:
    """Signal the processes of a node's pods whose command line starts with ``text``.

    With ``pod_uid``, only processes of that pod are signalled; with ``oldest``, only the process that has run longest:
    a rank, and not its standby.

    Returns:
        How many processes were signalled.

    Raises:
        ClusterError: no such node.
    """
    found = processes(name, text, pod_uid)
    reached = 0
    for pid in found[:1] if oldest else found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            reached += 1
    return reached


def processes(name: str, text: str, pod_uid: str = "") -> list[int]:
    """Return the processes of a node's pods whose command line starts with ``text``, the oldest first.

    With ``pod_uid``, only those of that pod.

    Raises:
        ClusterError: no such node.
    """
    members = {member.name: member for member in Options.load().nodes()}
    if name not in members:
        raise ClusterError(f"no node {name!r}: there are {', '.join(members)}")
    found: list[tuple[int, int]] = []  # start (clock ticks since boot), process
    for pid in cgroups.processes(members[name]):
        with contextlib.suppress(OSError):  # it may end while we look
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if line.startswith(text) and pod_uid in Path(f"/proc/{pid}/cgroup").read_text():
                found.append((_started(pid), pid))
    return [pid for _, pid in sorted(found)]


def _started(pid: int) -> int:
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    return int(after_name.split()[19])  # field 22 of proc(5)


def active() -> Faults:
    """Return the faults by node."""
    return dict(json.loads(FAULTS.read_text())) if FAULTS.exists() else {}


def find(name: str) -> Node:
    """Return the node of that name.

    Raises:
        ClusterError: no cluster runs, or it has no such node to hurt; the message names the nodes that it has.
    """
    if not running():
        raise ClusterError("no cluster runs: make cluster-up")
    members = {member.name: member for member in Options.load().nodes() if member.role != "control"}
    if name not in members:
        raise ClusterError(f"no node {name!r} to hurt: there are {', '.join(members)}")
    return members[name]


def _undo_cut(chosen: Node) -> None:
    fault = active().get(chosen.name, {}).get("cut")
    if fault is None:
        return
    if peer := fault.get("peer"):
        network.set_link_between(chosen, find(peer), up=True)
    else:
        network.set_link(chosen, up=True)


def _undo_link(chosen: Node) -> None:
    if fault := active().get(chosen.name, {}).get("link"):
        if peer := fault.get("peer"):
            network.limit_between(chosen, find(peer), None)
        else:
            network.limit(chosen, None)


def _undo_slow(chosen: Node) -> None:
    if fault := active().get(chosen.name, {}).get("slow"):
        cgroups.unlimit(chosen, Options.load().node_cores, fault["before"])


def _undo_compete(chosen: Node, processes: Processes) -> None:
    if fault := active().get(chosen.name, {}).get("compete"):
        cgroups.kill_folder(cgroups.competitor_folder(chosen))
        processes.stop([_competitor(chosen.name)], grace_seconds=0)
        cgroups.restore_weight(cgroups.pods_folder(chosen), fault["weight"])


def _competitor(name: str) -> str:
    return f"competitor-{name}"


def _note(name: str, fault: str, details: dict[str, Any]) -> None:
    faults = active()
    faults.setdefault(name, {})[fault] = details
    write_whole(FAULTS, json.dumps(faults))


def _forget(name: str) -> None:
    faults = active()
    faults.pop(name, None)
    if faults:
        write_whole(FAULTS, json.dumps(faults))
    else:
        FAULTS.unlink(missing_ok=True)
