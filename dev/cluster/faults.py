"""Faults that are real, one function each; the demo, the tests and the command line share them.

A fault is written down, so that ``heal`` undoes it from any process.
"""

from __future__ import annotations

import json
import os
from typing import Any

from dev.cluster import cgroups, network, node
from dev.cluster.layout import FAULTS, Node
from dev.cluster.lifecycle import Options
from dev.cluster.process import ClusterError, Processes

Faults = dict[str, dict[str, Any]]


def slow(name: str, factor: float) -> None:
    """Leave the node's pods ``factor`` of their CPU, by quota.

    On the node's capacity, so that new pods are slow too, and on each container, so that its own counter shows it.
    """
    if not 0 < factor < 1:
        raise ClusterError(f"slow {name} {factor}: the factor is the share that is left, between 0 and 1")
    chosen = find(name)
    cores = Options.load().node_cores * factor
    before = cgroups.limit_containers(chosen, cores)
    cgroups.set_capacity(chosen, cores)
    _note(name, "slow", {"factor": factor, "before": before})


def compete(name: str, share: float = 0.67) -> None:
    """A competing process on the node, without any quota, that takes ``share`` of the node's capacity by its weight."""
    if not 0 < share < 1:
        raise ClusterError(f"compete {name} {share}: the share that the competitor takes is between 0 and 1")
    chosen = find(name)
    folder = cgroups.competitor_folder(chosen)
    pods_shares = 1024
    cgroups.set_weight(cgroups.pods_folder(chosen), pods_shares)
    cgroups.set_weight(folder, round(pods_shares * share / (1 - share)))
    processes = Processes()
    # One loop a core, and one more: a pod's thread must share its core, wherever it runs.
    loops = "while :; do :; done & " * (os.cpu_count() or 1)
    command = f"echo $$ > {folder}/cgroup.procs; {loops} while :; do :; done"
    processes.start(_competitor(name), ["sh", "-c", command])
    _note(name, "compete", {"share": share})


def link(name: str, rate: str) -> None:
    """Shape the node's link to a rate such as ``50mbit``."""
    network.limit(find(name), rate)
    _note(name, "link", {"rate": rate})


def cut(name: str) -> None:
    """Take the node's link down: it runs on, and nobody reaches it."""
    network.set_link(find(name), up=False)
    _note(name, "cut", {})


def kill(name: str) -> None:
    """SIGKILL everything on the node at once: kubelet, containerd, every pod."""
    node.lose(find(name), Processes())
    _note(name, "kill", {})


def heal(name: str) -> None:
    """Undo every fault of the node; a killed node boots again."""
    chosen = find(name)
    faults = active().get(name, {})
    processes = Processes()
    if "cut" in faults:
        network.set_link(chosen, up=True)
    if "link" in faults:
        network.limit(chosen, None)
    if "compete" in faults:
        cgroups.kill_folder(cgroups.competitor_folder(chosen))
        processes.stop([_competitor(name)], grace_seconds=1)
    if "slow" in faults:
        cgroups.set_capacity(chosen, Options.load().node_cores)
        cgroups.restore_containers(faults["slow"]["before"])
    if "kill" in faults:
        node.boot(chosen, processes)
    _forget(name)


def active() -> Faults:
    """Faults by node."""
    return dict(json.loads(FAULTS.read_text())) if FAULTS.exists() else {}


def find(name: str) -> Node:
    """The node of that name.

    Raises:
        ClusterError: there is none; names those that exist.
    """
    members = {member.name: member for member in Options.load().nodes() if member.role != "control"}
    if name not in members:
        raise ClusterError(f"no node {name!r} to hurt: there are {', '.join(members)}")
    return members[name]


def _competitor(name: str) -> str:
    return f"competitor-{name}"


def _note(name: str, fault: str, details: dict[str, Any]) -> None:
    faults = active()
    faults.setdefault(name, {})[fault] = details
    FAULTS.write_text(json.dumps(faults))


def _forget(name: str) -> None:
    faults = active()
    faults.pop(name, None)
    if faults:
        FAULTS.write_text(json.dumps(faults))
    else:
        FAULTS.unlink(missing_ok=True)
