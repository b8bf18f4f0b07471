"""Lines of the kernel's log in the drivers' own forms: events differ from announcements, by words and by level."""

from __future__ import annotations

import pytest

from falcon_agent.node.problems import concerns_node, of_line
from falcon_core.errors.judge import shipped_judge
from falcon_core.errors.table import Source
from tests.unit.errors.lines import BENIGN, labelled

CLASSIFIER = shipped_judge().classifier
LINES = labelled("kernel.txt")


def named(text: str, level: int | None = None) -> str:
    seen = of_line(text, 0.0, shipped_judge(), level)
    return BENIGN if seen is None else seen.name


@pytest.mark.parametrize(("expected", "line"), LINES, ids=range(len(LINES)))
def test_each_line_has_its_class(expected: str, line: str) -> None:
    found = CLASSIFIER.line(line, Source.KERNEL)
    assert (BENIGN if found is None else found.name) == expected
    known = shipped_judge().get(expected)
    assert named(line) == (expected if known is not None and concerns_node(known) else BENIGN)


@pytest.mark.parametrize(
    "mark", ["[   12.345678] ", "<3>", "kern  :err   : [   12.345678] ", "Dec 02 09:56:04 n1 kernel: "]
)
def test_marks_before_a_line_change_nothing(mark: str) -> None:
    other = [line for _, line in LINES if named(mark + line) != named(line)]
    assert other == []


@pytest.mark.parametrize(
    ("text", "level", "expected"),
    [
        ("nvme nvme1: I/O 385 QID 12 timeout, reset controller", 4, "DiskError"),
        ("nvme nvme1: I/O 385 QID 12 timeout, reset controller", 6, BENIGN),
        ("amdgpu 0000:b3:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block", 6, "EccError"),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", 5, "GpuLost"),
        ("kern  :info  : [ 1.2] EXT4-fs error (device sda1): x", None, BENIGN),
        ("kern  :crit  : [ 1.2] EXT4-fs error (device sda1): x", None, "DiskError"),
        ("<6>EXT4-fs error (device sda1): x", None, BENIGN),
        ("<2>EXT4-fs error (device sda1): x", None, "DiskError"),
    ],
)
def test_a_level_of_announcements_tells_of_no_fault_unless_the_driver_writes_its_faults_there(
    text: str, level: int | None, expected: str
) -> None:
    assert named(text, level) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 145, pid=7, name=python, RLW_SRC Nonfatal XC1 i0 Link 05", "HardwareWarning"),
        ("NVRM: Xid (PCI:0000:3b:00): 145, pid=7, name=python, RLW_SRC Fatal XC1 i0 Link 05", "NvlinkError"),
        ("NVRM: Xid (PCI:0000:3b:00): 45, pid=7, name=a,GPU is lost, Ch 00000008", BENIGN),
        ("NVRM: Xid (PCI:0000:3b:00): 154, pid='<unknown>', name=<unknown>, GPU recovery action changed"
         " from 0x0 (None) to 0x1 (GPU Reset Required)", "GpuFault"),
        ("NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset) to 0x0 (None)", BENIGN),
    ],
)  # fmt: skip
def test_an_xid_keeps_its_own_words_wherever_a_program_is_named(text: str, expected: str) -> None:
    assert named(text) == expected
