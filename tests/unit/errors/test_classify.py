"""Judging lines: whole logs, the order of findings, and hostile text."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from falcon_core.errors.classify import (
    MOST_FINDINGS,
    MOST_LINE_BYTES,
    MOST_MATCHED_CHARACTERS,
    worst,
)
from falcon_core.errors.judge import shipped_judge
from falcon_core.errors.table import Source
from tests.unit.errors.lines import labelled

ECC = """step 812 | loss 2.31
[rank5]: Traceback (most recent call last):
[rank5]:   File "/opt/job/train.py", line 75, in main
[rank5]:     loss.backward()
[rank5]: RuntimeError: CUDA error: uncorrectable ECC error encountered
[rank5]: CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace may be incorrect.
[rank5]: For debugging consider passing CUDA_LAUNCH_BLOCKING=1
[rank5]: Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
terminate called after throwing an instance of 'c10::DistBackendError'
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""
PEER = """[rank0]:[E1019 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(9)
ValueError: bad shape
[rank1]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:525] Connection closed by peer [10.0.0.3]:1
"""
SHM = """Traceback (most recent call last):
  File "/opt/job/train.py", line 9, in <module>
    for batch in loader:
RuntimeError: DataLoader worker (pid 12) is killed by signal: Bus error. It is possible that dataloader's workers are \
out of shared memory. Please try to raise your shared memory limit.
"""


@pytest.mark.parametrize(("log", "name"), [(ECC, "EccError"), (PEER, "ProgramError"), (SHM, "ShmTooSmall")])
def test_a_whole_log_is_told_by_its_own_cause(log: str, name: str) -> None:
    found = worst(shipped_judge().classifier.chunk(log))
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("FATAL: last checkpoint failed: No space left on device", "DiskFull"),
        ("previous save failed: No space left on device", "DiskFull"),
        ("last upload failed: 503 Service Unavailable", "StorageUnavailable"),
        ("last attempt failed: 503 Service Unavailable", "StorageUnavailable"),
        ("previous attempt failed with NCCL timeout; resuming from checkpoint step 4000", ""),
        ("restored from step 800 after the last run was killed by SIGKILL", ""),
        ("previous save failed at step 300 and was discarded", ""),
    ],
)
def test_a_failed_save_of_this_run_is_no_end_of_an_earlier_one(line: str, name: str) -> None:
    found = worst(shipped_judge().classifier.chunk(line))
    assert (found.name if found is not None else "") == name


def test_a_finding_says_what_matched_and_where() -> None:
    found = shipped_judge().classifier.chunk(ECC)
    assert found[-1].name == "ChildFailed"
    first = next(finding for finding in found if finding.name == "EccError")
    assert (first.line, first.rule, first.consequence) == (4, "ecc", False)
    assert first.matched == "uncorrectable ECC error"


def test_a_gpus_error_is_not_the_programs() -> None:
    words = shipped_judge().last_words(ECC)
    assert words.text.endswith("(train.py:75 in main)")
    assert (words.error, words.error_class, words.consequence) == ("", "EccError", False)
    assert shipped_judge().last_words(SHM).error_class == "ShmTooSmall"


def test_own_before_consequence_graver_before_lighter_earlier_before_later() -> None:
    lines = ["Connection reset by peer", "KeyError: 'a'", "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."]
    found = shipped_judge().classifier.chunk("\n".join([*lines, lines[-1]]))
    assert [finding.name for finding in found] == ["ConnectionReset", "ProgramError", "GpuLost", "GpuLost"]
    told = worst(found)
    assert told is not None
    assert told.line == 2
    assert worst([]) is None


def test_progress_bars_colours_and_broken_text() -> None:
    classifier = shipped_judge().classifier
    bar = "10%|#| 1/10\r20%|##| 2/10\rRuntimeError: CUDA error: device-side assert triggered\r"
    for line in (bar, f"\x1b[1;31m{bar}\x1b[0m", bar.encode() + b"\xff\xfe\x00"):
        found = classifier.line(line)
        assert found is not None
        assert found.name == "DeviceAssert"


@pytest.mark.parametrize("side", ["start", "end"])
def test_a_line_of_megabytes(side: str) -> None:
    noise, error = "x" * 4_000_000, " CUDA error: an illegal memory access was encountered "
    found = shipped_judge().classifier.line(error + noise if side == "start" else noise + error)
    assert found is not None
    assert found.name == "IllegalMemoryAccess"


def test_a_flood_of_errors_is_bounded() -> None:
    assert len(shipped_judge().classifier.chunk("KeyError: 'a'\n" * (2 * MOST_FINDINGS))) == MOST_FINDINGS


PIECES = [line for _, line in labelled("corpus.txt")]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=80)), max_size=12), st.sampled_from(["", " ", "\r"])
)
@example([PIECES[0], "\ud7fc", PIECES[0]], "")  # no character has this code point
def test_any_mixture_is_read(parts: list[str], between: str) -> None:
    text = between.join(parts)
    for finding in shipped_judge().classifier.chunk(text):
        assert finding.matched.isprintable()
        assert len(finding.matched) <= MOST_MATCHED_CHARACTERS
        assert 0 <= finding.line <= text.count("\r") + text.count("\n")
    shipped_judge().last_words(text)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=3 * MOST_LINE_BYTES))
def test_any_bytes_are_read(data: bytes) -> None:
    shipped_judge().classifier.chunk(data)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=40))
def test_a_chunk_says_what_its_lines_say(lines: list[str]) -> None:
    classifier = shipped_judge().classifier
    alone = [finding.name for line in lines if (finding := classifier.line(line)) is not None]
    assert [finding.name for finding in classifier.chunk("\n".join(lines))] == alone


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("AcceleratedHardwareReady False SomeReason: of 8 GPUs", "GpuDriverError"),
        ("RdmaHealthy=False NoReasonGiven", "NicLost"),
        ("HardwareHealth=False SomeReason", "UnknownNodeFault"),
        ("AcceleratedHardwareReady True AllGood", None),
        ("ContainerRuntimeUnhealthy=False NoProblem", None),
        ("VMEventScheduled=False NoVMEventScheduled", None),
        ("node gpu-3 was uncordoned, NodeHealth=True", None),
    ],
)
def test_a_condition_that_should_hold_is_a_fault_only_where_it_does_not(line: str, name: str | None) -> None:
    found = shipped_judge().classifier.line(line, Source.CONDITION)
    assert (found.name if found is not None else None) == name


def test_a_status_of_cuda_is_a_finding_whatever_call_returned_it() -> None:
    words = "JaxRuntimeError: INTERNAL: Failed to query event: CUDA_ERROR_NVLINK_UNCORRECTABLE: an error"
    found = shipped_judge().classifier.line(words, Source.OUTPUT, raised=True)
    assert found is not None
    assert found.name == "NvlinkError"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("SomeGPUFallenOffBusHere=True on slot 5", "GpuLost"),
        ("gpu_thing: GPU_COUNT expected 8, got 6", "GpuLost"),
        ("GPUOddPartFailure=True", "GpuFault"),
        ("HardwareOddPartFault=True", "UnknownNodeFault"),
        ("SomeGPUFallenOffBusHere=False", None),
        ("odd_nvlink_check: PASSED", None),
        ("Some_odd_part=True", None),
    ],
)
def test_the_name_of_a_condition_is_read_as_words(line: str, name: str | None) -> None:
    found = shipped_judge().classifier.line(line, Source.CONDITION)
    assert (found.name if found is not None else None) == name


def test_names_in_the_output_of_a_rank_are_not_read_as_words() -> None:
    assert shipped_judge().classifier.line("SomeGPUFallenOffBusHere=True", Source.OUTPUT) is None


@pytest.mark.parametrize(
    ("line", "source", "name"),
    [
        ("HTCondor: startd of gpu-4 vanished, no update for 1200 seconds", Source.CONDITION, "LostConnection"),
        ("event DeviceMissing: accelerator 0000:9d:00.0 no longer enumerated", Source.CONDITION, "GpuLost"),
        ("[ 812.4] habanalabs hl2: device is gone, all register reads return 0xffffffff", Source.KERNEL, "GpuLost"),
        ("[ 455.0] devdrv hbm ecc: device 3 multi-bit error reported", Source.KERNEL, "EccError"),
        ("[ 15.4] newchip 0000:41:00.0: firmware crashed, device is dead", Source.KERNEL, "PcieError"),
        ("[ 15.4] xhci_hcd 0000:00:14.0: controller is dead", Source.KERNEL, ""),
    ],
)
def test_a_part_and_what_befell_it_are_read_in_any_drivers_words(line: str, source: Source, name: str) -> None:
    finding = shipped_judge().classifier.line(line, source)
    assert (finding.name if finding is not None else "") == name


def test_a_line_of_information_is_no_error_whatever_its_words() -> None:
    ended = "coordination_service.cc:686] /job:jax_worker/replica:0/task:3 has disconnected from coordination service."
    assert shipped_judge().last_words(f"I0000 00:00:1711301822.558010  981991 {ended}").error_class == ""
    assert shipped_judge().last_words(f"E0000 00:00:1711301822.558010  981991 {ended}").error_class == "RemoteError"
