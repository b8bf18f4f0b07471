"""What nodes report of themselves: which conditions mean trouble, and whom the operator believes them of."""

from __future__ import annotations

import json

import pytest

from falcon_core.errors.judge import shipped_judge
from falcon_operator.base.ports import NodeReport, NodeView
from falcon_operator.cluster import nodes
from falcon_operator.intent.model.node_troubles import STALE_SECONDS, grave_troubles, node_trouble, who_is_busy


def view(*conditions: tuple[str, str, str, str]) -> NodeView:
    """Return a node as the API server sends it; a condition is type, status, reason and message."""
    listed = [
        {"type": type_, "status": status, "reason": reason, "message": message}
        for type_, status, reason, message in [("Ready", "True", "KubeletReady", "kubelet is ready"), *conditions]
    ]
    raw = {"metadata": {"name": "a", "resourceVersion": "1"}, "status": {"conditions": listed}}
    return nodes.item(json.dumps(raw).encode()).view.view


# Conditions as node-problem-detector and NVSentinel write them, and Falcon's own.
TROUBLES = [
    (("KernelDeadlock", "True", "DockerHung", "task docker:20744 blocked for more than 120 seconds."), "KernelFault"),
    (("ReadonlyFilesystem", "True", "FilesystemIsReadOnly", "Filesystem is read-only"), "ReadOnlyFilesystem"),
    (("GpuXid", "True", "XID79", "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."), "GpuLost"),
    (
        (
            "GpuMemWatch",
            "True",
            "GpuMemWatchIsNotHealthy",
            "ErrorCode:DCGM_FR_FAULTY_MEMORY GPU:0 PCI:0002:00:00 A DBE has been detected",
        ),
        "EccError",
    ),
    (
        (
            "GpuXidError",
            "True",
            "GpuXidErrorIsNotHealthy",
            "ErrorCode:79 gpu:0 XID error occured Recommended Action=NODE_REBOOT;",
        ),
        "GpuLost",
    ),
    (("XfsShutdown", "True", "XfsHasShutDown", "XFS has shutdown"), "DiskError"),
    (("NicDegraded", "True", "SlowPort", "mlx5_0 port 1"), "NicDegraded"),
    (("GpuOverheated", "True", "Temperature", "GPU 3 at 95 C"), "GpuOverheated"),
    (("FalconGpuProblem", "True", "GpuOverheated", "GPU 3: 97 C, slowed down"), "GpuOverheated"),
]


@pytest.mark.parametrize(("condition", "error_class"), TROUBLES)
def test_grave_troubles(condition: tuple[str, str, str, str], error_class: str) -> None:
    trouble = node_trouble(view(condition), shipped_judge())
    assert trouble is not None
    assert (trouble.error_class, trouble.grave) == (error_class, True)
    assert f"condition {condition[0]}: {condition[3]}" in trouble.text


@pytest.mark.parametrize(
    "condition",
    [
        ("KernelDeadlock", "False", "KernelHasNoDeadlock", "kernel has no deadlock"),
        ("GpuXid", "Unknown", "XID79", "GPU has fallen off the bus"),
        ("MemoryPressure", "True", "KubeletHasInsufficientMemory", "kubelet has insufficient memory"),
        ("SriovReady", "True", "Ready", "all devices are ready"),
        ("KubeletUnhealthy", "True", "KubeletUnhealthy", "kubelet:kubelet was found unhealthy"),
        ("FrequentKubeletRestart", "True", "FrequentKubeletRestart", "Found 5 matching logs"),
        ("FalconGpuProblem", "True", "NoSuchClass", "of a newer release"),
        ("FalconLinkProblem", "True", "RdmaError", "a consequence of something else"),
        ("FalconNodeProblem", "True", "ImportFailed", "no hardware"),
    ],
)
def test_all_else_is_no_trouble(condition: tuple[str, str, str, str]) -> None:
    assert node_trouble(view(condition), shipped_judge()) is None
    assert node_trouble(None, shipped_judge()) is None


def test_the_gravest_counts_and_a_link_does_not_slow_computation() -> None:
    flapping = ("FalconLinkProblem", "True", "LinkFlapping", "mlx5_0")
    trouble = node_trouble(view(flapping), shipped_judge())
    assert trouble is not None
    assert (trouble.grave, trouble.slows) == (False, False)
    lost = ("FalconLinkProblem", "True", "NicLost", "mlx5_0")
    hot = ("FalconNodeProblem", "True", "CoolingFailure", "fan 2")
    trouble = node_trouble(view(lost), shipped_judge())
    assert trouble is not None
    assert (trouble.grave, trouble.slows) == (True, False)
    trouble = node_trouble(view(flapping, hot), shipped_judge())
    assert trouble is not None
    assert (trouble.error_class, trouble.slows) == ("CoolingFailure", True)


def test_an_xid_of_the_programs_own_is_not_grave() -> None:
    """The type speaks of an Xid; the code says which, and it counts."""
    said = "ErrorCode:13 gpu:0 XID error occured Recommended Action=NONE;"
    trouble = node_trouble(view(("GpuXidError", "True", "GpuXidErrorIsNotHealthy", said)), shipped_judge())
    assert trouble is None or not trouble.grave


def test_a_nodes_words_are_bounded() -> None:
    many = [(f"Type{number}", "True", "x" * 900, "y\n\x1b[31m" * 900) for number in range(99)]
    reports = view(*many).reports
    assert len(reports) == 16
    assert all(len(report.reason) <= 100 and len(report.message) <= 300 for report in reports)
    assert all(report.message.isprintable() for report in reports)


def test_nodes_in_grave_trouble_by_name() -> None:
    bad = NodeView(name="a", reports=(NodeReport("FalconGpuProblem", "GpuLost", "GPU 0"),))
    slow = NodeView(name="b", reports=(NodeReport("FalconLinkProblem", "LinkFlapping", "mlx5_0"),))
    found = grave_troubles({"a": bad, "b": slow, "c": NodeView(name="c")}, shipped_judge())
    assert found == {"a": "GpuLost (condition FalconGpuProblem: GPU 0)"}


def test_who_is_busy_on_a_node_is_no_trouble_and_is_forgotten_when_nobody_repeats_it() -> None:
    said = "of 4.00 cores: batch/etl-5 2.90"
    node = NodeView(name="a", reports=(NodeReport("FalconCpuBusy", "NoIdleCore", said, 1_000.0),))
    assert who_is_busy(node, 1_300.0) == said
    assert node_trouble(node, shipped_judge()) is None
    assert who_is_busy(node, 1_000.0 + STALE_SECONDS + 1) == "", "its agent was taken away"
    assert who_is_busy(view(("FalconCpuBusy", "False", "IdleCores", "")), 1_000.0) == ""
    assert who_is_busy(None, 1_000.0) == ""


def test_when_a_condition_was_repeated_is_read() -> None:
    raw = {
        "metadata": {"name": "a", "resourceVersion": "1"},
        "status": {
            "conditions": [
                {"type": "FalconCpuBusy", "status": "True", "lastHeartbeatTime": "2026-11-26T17:00:00Z"},
            ]
        },
    }
    (report,) = nodes.item(json.dumps(raw).encode()).view.view.reports
    assert report.said_unix == 1_795_712_400.0
