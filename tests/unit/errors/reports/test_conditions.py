"""The forms in which a condition is printed, and conditions that name a fault which the node has not."""

from __future__ import annotations

import pytest

from falcon_core.errors.conditions import in_one_form, is_absent_fault, is_zero_sample
from falcon_core.errors.judge import shipped_judge
from falcon_core.errors.table import Source
from tests.unit.errors.lines import class_of


def named(text: str) -> str:
    finding = shipped_judge().report(text)
    return finding.name if finding is not None else ""


@pytest.mark.parametrize(
    "form",
    [
        "GPULost={status}: {reason}",
        "type=GPULost status={status} reason={reason}",
        'type="GPULost", status="{status}", reason="{reason}"',
        "condition: GPULost status: {status} reason: {reason}",
        "GPULost   {status}   Tue, 10 Feb 2026 04:01:20 +0000   {reason}",
        "GPULost: {status}, {reason}",
        "Node condition GPULost is now: {status}, reason: {reason}",
        "gpu-7: condition GPULost changed to {status}: {reason}",
        '{{"type":"GPULost","status":"{status}","reason":"{reason}"}}',
        '{{"status": "{status}", "reason": "{reason}", "type": "GPULost"}}',
    ],
)
def test_a_condition_is_judged_alike_in_each_form(form: str) -> None:
    assert named(form.format(status="True", reason="FellOffTheBus")) == "GpuLost"
    assert named(form.format(status="False", reason="AllGPUsOnTheBus")) == ""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("KernelHasNoDeadlock=False: the kernel has a deadlock", "KernelFault"),
        ("KernelHasNoDeadlock=True: the kernel has no deadlock", ""),
        ("NetworkUnavailable=False: RouteCreated", ""),
        ("GPUUnhealthy=False: Xid 79 was seen before the reset", ""),
        ("GPUHealthy=False: Xid 79", "GpuLost"),
        ("NodeCondition KernelDeadlock=False KernelHasNoDeadlock", ""),
        ("Node gpu-7: GPUFallenOffBus=False NoGpuLost", ""),
        ("Ready=False: KubeletNotReady: container runtime is down", "LostConnection"),
    ],
)
def test_a_fault_that_is_false_is_none_and_health_that_is_false_is_one(text: str, name: str) -> None:
    assert named(text) == name


@pytest.mark.parametrize("name", [b"KubeletReady", b"NVLinkHealthy", b"FabricAvailable", b"GpuCorrectness"])
def test_what_should_hold_is_no_absent_fault(name: bytes) -> None:
    assert not is_absent_fault(in_one_form(b"type=" + name + b" status=False"))
    assert is_absent_fault(in_one_form(b"type=Not" + name.removeprefix(b"Kubelet") + b"Lost status=False"))


@pytest.mark.parametrize(
    ("line", "is_zero"),
    [
        (b'kube_pod_container_status_last_terminated_reason{reason="OOMKilled"} 0', True),
        (b'dcgm_xid_errors{gpu="3"} 0.0 1764590000', True),
        (b'dcgm_xid_errors{gpu="3"} 1', False),
        (b'node_ready{node="a"} 0', False),
        (b'up{job="dcgm"} 0', False),
        (b'link_flap_count{port="eth4"} 0', True),
        (b'gpu_count{node="a"} 0', False),
    ],
)
def test_a_sample_of_0_counts_no_fault_where_its_metric_counts_something_bad(line: bytes, is_zero: bool) -> None:
    assert is_zero_sample(line) is is_zero


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('level=warn gpu=2 xid=94 msg="one page is poisoned"', "ContainedEccError"),
        ("[FIRING:1] GpuXid gpu=3 DCGM_FI_DEV_XID_ERRORS=79 host=a severity=critical", "GpuLost"),
        ('DCGM_FI_DEV_XID_ERRORS{gpu="3",host="a"} 48', "EccError"),
        ('DCGM_FI_DEV_XID_ERRORS{gpu="3",host="a"} 0', ""),
        ("SysLogsXIDError code=79 entity=PCI:0000:18:00", "GpuLost"),
        ("AcceleratedHardwareReady False: NvidiaXID62Error", "GpuFault"),
        ("importer: xid=79 rows processed", ""),
    ],
)
def test_an_xid_is_read_in_the_forms_of_monitors(text: str, name: str) -> None:
    assert class_of(text, Source.CONDITION) == name


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('plugin type="aws-cni" failed (add): add cmd: failed to assign an IP address to container', "DiskError"),
        ("RuntimeError: default device not found in the registry", "NicLost"),
        ("RuntimeError: memory mapping failed for shard 3", "LostConnection"),
        ("loader: data1: error in the index, it is made again", "DiskError"),
        ("OSError: fsd 12: FAILED Result of the query", "DiskError"),
        ("FanSensor: fan speed 4000 RPM, minimum 1000 RPM", "CoolingFailure"),
        ("inventory: 16 of 16 GPUs", "GpuLost"),
    ],
)
def test_a_rule_reads_no_end_of_another_word_or_number(text: str, wrong: str) -> None:
    for source in (Source.CONDITION, Source.OUTPUT):
        assert class_of(text, source) != wrong
