"""Faults next to words of an end, and healthy reports that have the name of a fault."""

from __future__ import annotations

import pytest

from falcon_core.errors.judge import shipped_judge
from falcon_core.errors.table import Source
from falcon_core.model import Severity


def is_grave(text: str) -> bool:
    finding = shipped_judge().report(text)
    return finding is not None and finding.error_class.severity is Severity.SEV1


@pytest.mark.parametrize(
    "text",
    [
        "GPU 3 has fallen off the bus, node stays cordoned until the fault is cleared",
        "Uncorrectable ECC error on GPU 3: reset the GPU so that errors are cleared",
        "Row remapping failure on GPU 2: replace it before the condition is cleared",
        "Node gpu-7 drained: double bit ECC error on GPU 1, do not undrain until the fault is repaired",
        "GPU 3: uncorrectable ECC errors detected; previous alarm was cleared",
        "GPU 5: uncorrectable memory error, the fault must be repaired by the vendor before alarms are cleared",
        "GPU 2 has fallen off the bus after driver errors were cleared",
        "Hardware failure: DIMM A1 has been removed from service, uncorrectable error",
        "md: error: disk sdb1 was removed from raid array md0, disk failure",
        "Event: GPU 3 has fallen off and has been removed from the bus",
        '{"status":"firing","alerts":[{"status":"resolved"},{"status":"firing","m":"GPU 3 has fallen off the bus"}]}',
        'gpu0 is_healthy=true gpu2 is_healthy=false reason="Xid 79 fallen off the bus"',
        "Cleared SEL; new record: uncorrectable ECC memory error DIMM A1",
        "Repaired yesterday, GPU 2 has fallen off the bus again",
        "VR fault 0x12 Deasserted, VR fault 0x13 Asserted: voltage regulator failed",
        'PSU1: "AC lost" deasserted, "Failure detected" asserted, power supply 1 failed',
        "health check passed: false, GPU 3 has fallen off the bus",
        "dcgm health check passed=0 failed=1: GPU 3 uncorrectable ECC errors",
        "Last health check passed 2h ago; GPU 3 is lost",
        "SUCCESS: 7 GPUs, FAILURE: GPU 3 has fallen off the bus",
        "check: exit_code: 0 -> check: exit_code: 2 GPU 3 fallen off the bus",
        "No GPU row remap pending, but row remap failure on GPU 3",
        "GpuCheck: False, GPU 3 has fallen off the bus",
        "DcgmDiagnostics  False  Tue, 10 Feb 2026 04:01:20 +0000  GPU 3 uncorrectable ECC error",
        "NVLinkStatus is False: NVLink 3 of GPU 2 is down",
        "GPUCount: False, expected 8 GPUs but found 7",
        "HealthCheckPasses: False, reason: Xid 79 GPU has fallen off the bus",
        "XidErrorCheck: False  Xid 79: GPU has fallen off the bus",
    ],
)
def test_a_fault_that_lasts_is_one_whatever_else_has_ended(text: str) -> None:
    assert is_grave(text)


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus; alarms were cleared",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Fatal, Link 3 egress PRIV error, errors were cleared",
    ],
)
def test_the_kernels_faults_last_as_well(text: str) -> None:
    finding = shipped_judge().classifier.line(text, Source.KERNEL)
    assert finding is not None
    assert finding.error_class.severity is Severity.SEV1


@pytest.mark.parametrize(
    "text",
    [
        "loaded alerting rule GpuDown",
        "alert GpuDown is inactive",
        "GpuDown=0",
        "EdacUncorrectableErrors 0",
        "HealthMonitoring: Fault class: MEMORY has no fault on instance bm-7",
        "Fault class: GPU. Fault cleared on instance bm-7",
        "RDMA NIC count mismatch check passed",
        "RDMALinkCountMismatch check: ok",
        "eth3 (unused): Link detected: no",
        "Line protocol on Interface Ethernet1/3, changed state to down (administratively)",
        "port Ethernet8 oper state set from up to down: admin shutdown",
        "fan speed abnormal threshold set to 20%",
        "F0374 fltEquipmentFanInoperable cleared",
        "fltStorageLocalDiskInoperable: condition is no longer present",
        "Drive 3 has been disabled due to a detected fault: cleared",
        "UPI link width x20 full, no reduced width",
        "SystemStatus=impaired alarm is OK",
        "FQXSPPW2063I: Redundancy Lost for Power Resource has deasserted.",
        "1 processes in D state",
    ],
)
def test_the_name_of_a_fault_alone_costs_no_node(text: str) -> None:
    assert not is_grave(text)
