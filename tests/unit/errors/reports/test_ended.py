"""Reports that a fault, an alarm or an alert has ended; and what only looks so."""

from __future__ import annotations

import pytest

from falcon_core.errors.judge import shipped_judge


def named(text: str) -> str:
    finding = shipped_judge().report(text)
    return finding.name if finding is not None else ""


@pytest.mark.parametrize(
    ("fault", "end", "name"),
    [
        ("{} NvidiaGpuFellOffBus: GPU 2 of gpu-9 has fallen off the bus", ("[FIRING:1]", "[RESOLVED]"), "GpuLost"),
        ("GpuFellOffBus status={} gpu=2 has fallen off the bus", ("firing", "resolved"), "GpuLost"),
        ("{} System Fan Failure (Fan 2, Location System)", ("Asserted:", "Repaired"), "CoolingFailure"),
        ("Major 0x0300000d {} The disk Disk7 failed.", ("Asserted", "Deasserted"), "DiskError"),
        ("Sensor Fan 4: Lower Critical going low {}", ("asserted", "deasserted"), "CoolingFailure"),
        ("F0374 fltEquipmentPsuInoperable {} Power supply 1", ("major:", "cleared:"), "PowerFailure"),
    ],
)
def test_the_end_of_a_fault_is_none(fault: str, end: tuple[str, str], name: str) -> None:
    began, ended = end
    assert named(fault.format(began)) == name
    assert named(fault.format(ended)) == ""


@pytest.mark.parametrize(
    "text",
    [
        "power sequencer: chassis power fault on rail 3, PGOOD deasserted",
        "PSU 2 input lost, PWR_OK deasserted",
    ],
)
def test_a_signal_that_is_deasserted_ends_no_fault(text: str) -> None:
    assert named(text) == "PowerFailure"


def test_an_error_that_is_not_cleared_goes_on() -> None:
    assert named("uncorrectable ECC error of GPU 3: the alarm has not been cleared") == "EccError"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("F0190 fltMemoryUnitInoperable major: DIMM DIMM_P2_A1 on server 7 operability: inoperable", "MachineCheck"),
        ("F0502 fltMemoryUnitIdentityUnestablishable warning: DIMM A1 on server 4 has an invalid FRU", "MachineCheck"),
        ("F0379 fltEquipmentFanModuleInoperable major: Fan module 2 in chassis 1 inoperable", "CoolingFailure"),
        ("FQXSPPU0001N: An over-temperature condition has been detected on processor CPU 1.", "CoolingFailure"),
        ("Feb 10 02:17:01 bmc gpiointrd FRU: 9 ASSERT: SGPIO44 - GPU_BASE_OVERT_N", "GpuOverheated"),
        ("HealthMonitoring: Fault class: MEMORY. A fault was detected on instance bm-7", "MachineCheck"),
        ("[FIRING:1] EdacUncorrectableErrors (instance gpu-8) 2 errors", "MachineCheck"),
        ("[FIRING:1] EdacCorrectableErrorsHigh (instance gpu-8) 812 errors", "HardwareWarning"),
        ("VD 00/0 is now DEGRADED", "HardwareWarning"),
        ("State change on VD 00/0 from DEGRADED(2) to OPTIMAL(3)", ""),
        ("Link went down: (Switch:leaf-3:1/9/2) - (Computer:gpu-51 HCA-1)", "LinkDown"),
        ("%PM-4-ERR_DISABLE: link-flap error detected on Et3/1, putting Et3/1 in err-disable state", "LinkFlapping"),
        ("node gpu-4: 41 processes in D state", "TaskHang"),
        ("node gpu-4: 0 processes in D state", ""),
        ("The resource `/redfish/v1/Systems/node-3` has powered off.", "NodeOffline"),
        ('Warning  Failed  kubelet  Error: secret "hub-token" not found', "PodStartFailed"),
        ("Normal  Evict  vc-scheduler  Evict pod ml/ddp-7: preempt for job nlp-2", "Evicted"),
        ("HEALTH_WARN Reduced data availability: 12 pgs inactive", "StorageUnavailable"),
        ("health.go:213] XidCriticalError: Xid=79 on Device=GPU-0c; marking device as unhealthy.", "GpuLost"),
        ("I0211 17:12:09.113004  1 health.go:213] XidCriticalError: Xid=79; marking device as unhealthy.", "GpuLost"),
    ],
)
def test_names_of_controllers_and_checks_are_known(text: str, name: str) -> None:
    assert named(text) == name
