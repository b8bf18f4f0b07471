"""What the end of a process means."""

from __future__ import annotations

import signal

import pytest

from falcon_core.errors.taxonomy import classify_exit
from falcon_core.model import Cause, Severity


@pytest.mark.parametrize(
    ("exit_code", "number", "oom", "cause", "consequence", "text"),
    [
        (None, signal.SIGKILL, False, Cause.PROCESS_KILLED, False, "killed by SIGKILL"),
        (137, None, False, Cause.PROCESS_KILLED, False, "killed by SIGKILL"),
        (None, signal.SIGTERM, False, Cause.PROCESS_KILLED, False, "killed by SIGTERM"),
        (None, signal.SIGKILL, True, Cause.OUT_OF_MEMORY, False, "out of memory"),
        (None, signal.SIGSEGV, False, Cause.PROCESS_CRASHED, False, "crashed with SIGSEGV"),
        (139, None, False, Cause.PROCESS_CRASHED, False, "crashed with SIGSEGV"),
        (None, signal.SIGABRT, False, Cause.PROCESS_CRASHED, True, "crashed with SIGABRT"),
        (1, None, False, Cause.PROCESS_FAILED, True, "exited with code 1"),
        (255, None, False, Cause.PROCESS_FAILED, True, "exited with code 255"),
    ],
)
def test_ends(exit_code: int | None, number: int | None, oom: bool, cause: Cause, consequence: bool, text: str) -> None:
    end = classify_exit(exit_code=exit_code, signal=number, oom_killed=oom)
    assert end is not None
    assert (end.cause, end.severity, end.consequence) == (cause, Severity.SEV2, consequence)
    assert text in end.text


def test_a_good_end_is_no_fault() -> None:
    assert classify_exit(exit_code=0, signal=None, oom_killed=False) is None
