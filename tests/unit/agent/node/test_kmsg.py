"""Records of /dev/kmsg, in the form that Linux documents; the device itself is read in tests/integration/agent."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from falcon_agent.node.kmsg import Log, parse, unix_seconds

XID = (
    b"4,1901,7312345678,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus\n"
)


def test_a_record_has_a_priority_a_number_a_time_and_a_text() -> None:
    (record,) = parse(XID)
    assert (record.priority, record.sequence, record.seconds) == (4, 1901, 7312.345678)
    assert record.text.startswith("NVRM: Xid (PCI:0000:3b:00): 79")
    assert record.of_kernel


def test_continuation_lines_belong_to_the_record_before_them() -> None:
    first, second = parse(
        b"3,339,5140900,-,caller=T1;NET: link down; again\n SUBSYSTEM=net\n DEVICE=n2\n"
        b"6,340,5690716,-;udevd[80]: starting\n"
    )
    assert first.text == "NET: link down; again"
    assert first.device == {"SUBSYSTEM": "net", "DEVICE": "n2"}
    assert second.device == {}


def test_escapes_are_undone_and_cannot_make_a_second_record() -> None:
    (record,) = parse(b"4,1,2,-;a\\x0a4,2,3,-;kernel panic \\x5c \\xc3\\xbc\n")
    assert record.text == "a\n4,2,3,-;kernel panic \\ ü"


@pytest.mark.parametrize("priority", [b"12", b"30", b"14"])
def test_what_a_process_wrote_is_not_the_kernels(priority: bytes) -> None:
    (record,) = parse(priority + b",5,6,-;kernel panic\n")
    assert not record.of_kernel


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"text", b"4;x", b"4,x,6,-;text", b"-1,5,6,-;text", b"4,5,6,-", b" A=b\n"]
)
def test_what_is_no_record_is_left_out(data: bytes) -> None:
    assert parse(data) == []


def test_only_recent_records_of_the_kernel_are_read(tmp_path: Path) -> None:
    """A file stands for the device: no program can write records of the kernel's own."""
    path = tmp_path / "kmsg"
    micros = int(time.monotonic() * 1e6)
    old, new = micros - 1_000_000_000, micros - 500_000_000
    path.write_bytes(b"4,1,%d,-;old\n4,2,%d,-;new\n12,3,%d,-;of a process\n" % (old, new, new))
    log = Log(path, look_back=900)
    (record,) = log.read()
    assert record.text == "new"
    assert unix_seconds(record) == pytest.approx(time.time() - 500, abs=60)
    assert log.read() == []
    log.close()


def test_a_reader_waits_for_a_line_and_goes_on_after_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    log = Log(path)
    with path.open("wb", buffering=0) as kernel:
        assert not log.wait(0)
        assert log.read() == []
        kernel.write(b"4,1,%d,-;a\n" % int(time.monotonic() * 1e6))
        assert log.wait(60)
        read = os.read
        answers = [BrokenPipeError()]  # as the device says that records were overwritten

        def once_overwritten(fd: int, size: int) -> bytes:
            if answers:
                raise answers.pop()
            return read(fd, size)

        monkeypatch.setattr(os, "read", once_overwritten)
        assert [record.text for record in log.read()] == ["a"]
        assert log.overwritten == 1
    log.close()
