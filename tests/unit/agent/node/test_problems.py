"""Which problems stand, by lines of the kernel's log and by counters, and until when."""

from __future__ import annotations

import pytest

from falcon_agent.node.problems import (
    CALM_SECONDS,
    GPU,
    LINK,
    MOST_CHARACTERS,
    NODE,
    TYPES,
    Condition,
    Problems,
    Seen,
    concerns_node,
    of_line,
)
from falcon_core.errors.judge import platform_judge, shipped_judge

BOOT = "1c274359-aaaa-4bbb-8ccc-1234567890ab"
T = 1_700_000_000.0
XID = "NVRM: Xid (PCI:0000:3b:00): {}, pid=77, name={}, Ch 00000008"


def line(text: str) -> str | None:
    seen = of_line(text, T, shipped_judge())
    return None if seen is None else seen.name


def problems(*seen: Seen) -> Problems:
    made = Problems(shipped_judge(), BOOT)
    made.see(seen)
    return made


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (XID.format(79, "python"), "GpuLost"),
        (XID.format(48, "python"), "EccError"),
        (XID.format(63, "python"), "CorrectedEccError"),
        (XID.format(74, "python"), "NvlinkError"),
        ("mlx5_core 0000:5e:00.0 eth2: Link down", "LinkFlapping"),
        ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: bd80000000100134", "MachineCheck"),
        ("pcieport 0000:5d:00.0: AER: Corrected error message received from 0000:5e:00.0", "HardwareWarning"),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4242]", "KernelFault"),
        (
            "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls: reading directory lblock 0",
            "DiskError",
        ),
        ("blk_update_request: I/O error, dev nvme0n1, sector 1234", "DiskError"),
    ],
)
def test_the_kernel_tells_of_a_problem_of_the_node(text: str, name: str) -> None:
    assert line(text) == name


@pytest.mark.parametrize(
    "text",
    [
        "usb 1-1: new high-speed USB device number 2 using xhci_hcd",
        XID.format(31, "python"),  # illegal memory access: SEV2, mostly the program's own
        XID.format(13, "python"),
        XID.format(94, "python"),  # contained: the other processes go on
        XID.format(45, "python"),  # a consequence
        "Memory cgroup out of memory: Killed process 4242 (python) total-vm:1kB",
        "blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ)",  # a virtual machine without a floppy
        "Buffer I/O error on dev loop3, logical block 0, async page read",
    ],
)
def test_other_lines_tell_of_none(text: str) -> None:
    assert line(text) is None


@pytest.mark.parametrize("name", ["kernel panic", "GPU is lost", "a,GPU is lost", "soft lockup"])
@pytest.mark.parametrize(
    "text",
    [
        "{}[4242]: segfault at 0 ip 0000000000401136 sp 00007ffc error 6 in a[401000+1000]",
        "traps: {}[4242] general protection fault ip:401136 sp:7ffc error:0 in a[401000+1000]",
        "traps: {}[4242] trap divide error ip:401136 sp:7ffc error:0 in a[401000+1000]",
        "CPU: 3 PID: 4242 Comm: {} Not tainted 6.1.0",
        "INFO: task {}:4242 blocked for more than 120 seconds.",
        "{} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task={},pid=4242,uid=0",
        "Memory cgroup out of memory: Killed process 4242 ({}) total-vm:1kB",
        "[   4242]  1000  4242     1000      100    45056        0             0 {}",
        "{} (4242): drop_caches: 3",
        "process '{}' started with executable stack",
        "{}: page allocation failure: order:4, mode:0x40cc0(GFP_KERNEL|__GFP_COMP)",
        XID.format(31, "{}"),
        XID.format(45, "{}"),
    ],
)
def test_a_process_cannot_speak_for_the_kernel_by_its_name(text: str, name: str) -> None:
    assert line(text.format(name)) is None


def test_nothing_seen_is_no_problem() -> None:
    assert problems().conditions(T) == {kind: Condition(holds=False) for kind in TYPES}


def test_each_domain_has_a_condition() -> None:
    seen = [Seen("GpuLost", "a", T), Seen("LinkFlapping", "b", T), Seen("DiskError", "c", T)]
    conditions = problems(*seen).conditions(T)
    assert {kind: condition.reason for kind, condition in conditions.items()} == {
        GPU: "GpuLost",
        LINK: "LinkFlapping",
        NODE: "DiskError",
    }
    assert all(condition.holds for condition in conditions.values())


def test_the_gravest_counts_and_of_equals_the_first() -> None:
    made = problems(
        Seen("CorrectedEccError", "light", T), Seen("EccError", "first", T + 1), Seen("GpuLost", "second", T + 2)
    )
    condition = made.conditions(T + 3)[GPU]
    assert condition.reason == "EccError"
    assert condition.message == "first [boot 1c274359]"


def test_what_passes_by_itself_is_over_after_a_calm_time() -> None:
    made = problems(Seen("LinkFlapping", "a", T), Seen("LinkFlapping", "b", T + 100))
    assert made.conditions(T + 100 + CALM_SECONDS - 1)[LINK].message == "a [boot 1c274359]"
    assert not made.conditions(T + 100 + CALM_SECONDS)[LINK].holds


@pytest.mark.parametrize("name", ["LinkDown", "NicDegraded", "GpuOverheated"])
def test_a_state_is_over_when_it_is_not_seen_any_more(name: str) -> None:
    made = problems(Seen(name, "a", T))
    kind = GPU if name == "GpuOverheated" else LINK
    assert made.conditions(T + CALM_SECONDS - 1)[kind].holds
    assert not made.conditions(T + CALM_SECONDS)[kind].holds


def test_broken_hardware_stands_until_a_person_says_otherwise() -> None:
    made = problems(Seen("EccError", "a", T))
    assert made.conditions(T + 100 * CALM_SECONDS)[GPU].holds
    made.clear(GPU, T + 50)
    assert not made.conditions(T + 51)[GPU].holds
    made.see([Seen("EccError", "an old line, read again", T + 50)])
    assert not made.conditions(T + 52)[GPU].holds
    made.see([Seen("EccError", "again", T + 53)])
    assert made.conditions(T + 54)[GPU].holds


def test_a_problem_of_this_boot_outlives_the_daemon() -> None:
    before = problems(Seen("EccError", "a", T)).conditions(T)[GPU]
    made = problems()
    made.adopt(GPU, before, T + 5000)
    assert not before.differs(made.conditions(T + 5000)[GPU])


def test_a_problem_of_an_earlier_boot_is_over() -> None:
    before = problems(Seen("EccError", "a", T)).conditions(T)[GPU]
    made = Problems(shipped_judge(), "ffffffff-aaaa-4bbb-8ccc-1234567890ab")
    made.adopt(GPU, before, T + 300)
    assert not made.conditions(T + 300)[GPU].holds


def test_what_was_over_before_the_daemon_started_stays_over() -> None:
    """A person cleared the condition; the daemon starts anew and reads the same line of the log again."""
    made = problems(Seen("EccError", "a", T))
    made.adopt(GPU, Condition(holds=False, since=T + 10), T + 20)
    assert not made.conditions(T + 20)[GPU].holds


@pytest.mark.parametrize("reason", ["", "NoSuchClass", "IllegalMemoryAccess", "DiskFull"])
def test_a_condition_that_nobody_here_would_have_written_is_not_adopted(reason: str) -> None:
    made = problems()
    made.adopt(GPU, Condition(holds=True, reason=reason, message="x [boot 1c274359]"), T)
    assert not any(condition.holds for condition in made.conditions(T).values())


def test_a_message_is_bounded_one_line_and_clean() -> None:
    made = problems(Seen("EccError", "token=abcdefgh\n\x1b[31mred " + "x" * 1000, T))
    message = made.conditions(T)[GPU].message
    assert len(message) <= MOST_CHARACTERS + len(" [boot 12345678]")
    assert message.isprintable()
    assert "abcdefgh" not in message


def test_classes_of_the_platform_count_as_well() -> None:
    overrides = "classes: [{name: RackFire, severity: SEV1, domain: Node, meaning: m, remedy: r}]\n"
    overrides += "rules: [{id: fire, class: RackFire, patterns: ['rack on fire']}]"
    judge = platform_judge(overrides)
    seen = of_line("acpi: rack on fire", T, judge)
    assert seen is not None
    made = Problems(judge, BOOT)
    made.see([seen])
    assert made.conditions(T)[NODE].reason == "RackFire"


@pytest.mark.parametrize(
    ("name", "concerned"),
    [
        ("EccError", True),
        ("NicDegraded", True),
        ("KernelFault", True),
        ("HardwareWarning", True),
        ("IllegalMemoryAccess", False),  # SEV2
        ("TaskHang", False),
        ("GpuWorkStopped", False),  # a consequence, and not transient
        ("RdmaError", False),  # a consequence
        ("UnknownNodeFault", False),  # vague
        ("DiskFull", False),  # of storage
        ("ConnectionReset", False),  # of a peer
    ],
)
def test_which_classes_concern_the_node(name: str, concerned: bool) -> None:
    assert concerns_node(shipped_judge().table.get(name)) is concerned
