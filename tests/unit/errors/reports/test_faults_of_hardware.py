"""Faults of hardware in the words of kernels, controllers, agents and runtimes, and lines that sound like them.

The model of likeness has not learned from them: with them it judged fewer reports on rarer devices rightly.
"""

from __future__ import annotations

import pytest

from evaluation.errors.__main__ import is_class_right
from evaluation.errors.judged import judged
from evaluation.errors.lines import PART_ONE, _labelled, _objects
from evaluation.errors.steps import Step, step_of
from falcon_core.errors.conditions import is_absent_fault

UNKNOWN = 40  # of the lines: no rule tells their classes apart
LINES = list(_objects(PART_ONE / "faults_of_hardware.jsonl"))


def class_of(text: str, stream: str) -> str:
    return judged(_labelled({"text": text, "stream": stream, "class": "none"}, "test")).name


def test_the_lines_have_their_classes() -> None:
    wrong = [line.text for line in LINES if not is_class_right(judged(line))]
    assert len(wrong) <= UNKNOWN, wrong


def test_of_the_faults_nearly_all_cost_the_node_and_of_the_others_nearly_none_does() -> None:
    evicted = {line.id for line in LINES if step_of(judged(line).known) is Step.EVICT}
    missed = [line.text for line in LINES if line.is_grave and line.id not in evicted]
    wrong = [line.text for line in LINES if line.step is not Step.EVICT and line.id in evicted]
    assert len(missed) <= 15, missed
    assert len(wrong) <= 6, wrong


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # A runtime's wrapper stands before the device's own words.
        ("RuntimeError: [Rank:3] FATAL ERROR :: MODULE:PT_DEVMEM HBM uncorrectable error reported by hl3", "EccError"),
        ("EZ9999: Inner Error! AICore hardware fault, device 3, error code=0x800000", "GpuFault"),
        ("jax.errors.JaxRuntimeError: UNAVAILABLE: TPU health check failed: chip (0,1,0) unhealthy", "GpuFault"),
        ("XlaRuntimeError: INTERNAL: Accelerator device halted due to a hardware error in TensorCore 1", "GpuFault"),
        ("  what():  ze_call: ZE_RESULT_ERROR_DEVICE_REQUIRES_RESET", "GpuFault"),
        ("UCX ERROR mlx5_3: device fatal event, all endpoints are closed", "NicLost"),
        ("HardwareCorruptionError: fingerprint differs from the replica's: suspected SDC", "SilentDataCorruption"),
        # What a program watches for, counts as 0 or finds in order is no fault.
        ("INFO watcher subscribed to GPU fallen-off-bus and uncorrectable ECC events", "Benign"),
        ("[INFO] hl-smi: 8 devices, uncorrectable ecc: 0, pending rows: No", "Benign"),
        ("will abort if any GPU reports an uncorrectable ECC error", "Benign"),
        ("[sdc-guard] replay of step 8812 equal on all 8 GPUs, no corruption suspected", "Benign"),
    ],
)
def test_a_programs_words_for_a_device_come_before_those_of_its_runtime(text: str, expected: str) -> None:
    assert class_of(text, "output") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVRM: GPU2 krcRcAndNotifyAllChannels_IMPL: RC all channels for critical error 79.", "GpuLost"),
        ("LNetError: 9821:0:(o2iblnd_cb.c:3861:kiblnd_failover_thread()) Fatal device error for NI 10.8.0.41@o2ib",
         "NicLost"),
        ("qla2xxx [0000:21:00.0]-5003:7: ISP System Error; Unrecoverable Hardware Error: adapter marked OFFLINE!",
         "DiskError"),
        ("mlx5_core 0000:17:00.0: Recovery is impossible, please perform a full driver reload", "NicLost"),
        ("efa 0000:00:1d.0: Reset failed, device not ready: comp timeout", "NicLost"),  # "Reset" is not "set"
        ("Severe Machine check interrupt [Not recovered]", "MachineCheck"),
        ("nvme nvme2: SMART critical warning: 0x04, NVM subsystem reliability degraded", "DiskError"),  # a field's name
        # An option that was set, a handler that is registered, a counter that is 0.
        ("xe 0000:4d:00.0: [drm] Wedged mode set to 1 (upon critical errors)", "Benign"),
        ("thermal thermal_zone0: registered trip points: critical 105000, hot 100000", "Benign"),
        ("nvidia-nvswitch2: fatal error interrupts enabled (mask 0xffffffff)", "Benign"),
        ("device-mapper: raid: Loading target version 1.15.1; failed devices: 0", "Benign"),
        ("mlx5_core 0000:ca:00.0: fatal error recovery flow is enabled, grace period 180000 ms", "Benign"),
    ],
)  # fmt: skip
def test_the_kernels_words(text: str, expected: str) -> None:
    assert class_of(text, "kernel") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # A sensor's transition, the path of an interface, a table, a part with its number joined.
        ("FQXSPUN0023N: Sensor GPU Board 1 Fault has transitioned to non-recoverable.", "GpuFault"),
        ("FQXSPUN0019M: Sensor Fan 4 Tach has transitioned to critical from a less severe state.", "CoolingFailure"),
        ("FQXSPUN0019I: Sensor DIMM 14 Status has transitioned to a less severe state from critical.", "Benign"),
        ("xyz.openbmc_project.State.Fan.Error.Nonfunctional INVENTORY_PATH=/xyz/fan4", "CoolingFailure"),
        ("xyz.openbmc_project.Common.Error.InternalFailure", "Benign"),
        ("GPU 2: NVIDIA H100 80GB HBM3  Link 7: <inactive>", "NvlinkError"),
        ("PS Redundancy | Non-redundant: Insufficient Resources | Asserted", "PowerFailure"),
        ("pcie probe: slot 3 at 8GT/s, rated 32GT/s", "PcieDegraded"),
        ("Alarm: Disk5 failure, event code 0x02000009, severity Major", "DiskError"),
        ("Fan tray 2 is not functional, all rotors stopped", "CoolingFailure"),
        ("GPU 5 was unsuccessfully written to in a peer-to-peer test: 1_copy", "NvlinkError"),
        ("Hardware event. This is not a software error. MCE 0 CPU 3 BANK 8 STATUS fe00: processor context corrupt",
         "MachineCheck"),
        # An administrator's reason, in shorthand; what was replaced is none.
        ("Reason=mobo replacement scheduled [ops@2026-11-21]", "BoardFailure"),
        ("Reason=PSU 2+3 out [ops@2026-11-20]", "PowerFailure"),
        ("Reason=PSU 2 replaced and tested ok, waiting for resume [ops@2026-12-01]", "Benign"),
        ("Reason=vendor swap, node pulled from rack [ops@2026-11-20]", "NodeOffline"),
        # What should hold, and does, though its message names what was watched.
        ("StorageReady=True StorageIsReady: Monitoring for the DiskPressure system is active", "Benign"),
        ("rasdaemon: mc_event store: recording events, 0 uncorrected", "Benign"),
        ("CDU-2: leak sensor test completed, flow 310 lpm, no alarm active", "Benign"),
    ],
)  # fmt: skip
def test_the_words_of_controllers_agents_and_administrators(text: str, expected: str) -> None:
    assert class_of(text, "condition") == expected


def test_a_condition_that_should_hold_and_holds_is_no_fault() -> None:
    assert is_absent_fault(b"AcceleratedHardwareReady=True: Monitoring for GPU errors is active")
    assert not is_absent_fault(b"AcceleratedHardwareReady=False: NvidiaXID79Error")
    assert not is_absent_fault(b"FaultReady=True: power fault")
