"""How a failure shows itself, and how far it reaches: data, with one look-up for the end of a process.

``TABLE`` is Unicron's table 1; ``EXITS`` says what a process's end means. A class, its cause and its severity are kept
apart from what is done about it: the ladder (``recovery``) decides that, by budget and by place.
"""

from __future__ import annotations

import signal as signals

import msgspec

from falcon_core.model import Cause, Severity


class ErrorClass(msgspec.Struct, frozen=True):
    """One row of Unicron's table 1."""

    detected_by: str
    name: str
    severity: Severity


TABLE = (
    ErrorClass("node health", "lost connection", Severity.SEV1),
    ErrorClass("process supervision", "exited abnormally", Severity.SEV2),
    ErrorClass("exception propagation", "connection refused or reset", Severity.SEV3),
    ErrorClass("exception propagation", "illegal memory access", Severity.SEV2),
    ErrorClass("exception propagation", "ECC error", Severity.SEV1),
    ErrorClass("exception propagation", "invalid DMA mapping", Severity.SEV1),
    ErrorClass("exception propagation", "CUDA error", Severity.SEV2),
    ErrorClass("exception propagation", "NVLink error", Severity.SEV1),
    ErrorClass("exception propagation", "GPU driver error", Severity.SEV1),
    ErrorClass("exception propagation", "other network error", Severity.SEV3),
    ErrorClass("exception propagation", "other software error", Severity.SEV2),
    ErrorClass("online statistics", "NCCL timeout", Severity.SEV3),
    ErrorClass("online statistics", "link flapping", Severity.SEV3),
    ErrorClass("online statistics", "task hang", Severity.SEV2),
    ErrorClass("online statistics", "other software error", Severity.SEV2),
)


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """What the end of a process means.

    ``consequence``: a peer's death ends a process in this way too (a broken collective raises or aborts), so that it is
    no proof of a fault of its own.
    """

    cause: Cause
    severity: Severity
    consequence: bool
    text: str


_KILLS = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"})
_SHELL_SIGNAL_BASE = 128  # a shell reports a child's signal n as exit code 128 + n


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def classify_exit(*, exit_code: int | None, signal: int | None, oom_killed: bool) -> Exit | None:
    """The meaning of a process's end; None for a good one (exit code 0)."""
    if oom_killed:
        return Exit(
            cause=Cause.OUT_OF_MEMORY,
            severity=Severity.SEV2,
            consequence=False,
            text="killed by the kernel: out of memory (its container's limit)",
        )
    if signal is None and exit_code is not None and exit_code > _SHELL_SIGNAL_BASE:
        number = exit_code - _SHELL_SIGNAL_BASE
        signal = number if _signal_name(number).startswith("SIG") else None
    if signal is not None:
        name = _signal_name(signal)
        if name in _KILLS:
            return Exit(cause=Cause.PROCESS_KILLED, severity=Severity.SEV2, consequence=False, text=f"killed by {name}")
        return Exit(
            cause=Cause.PROCESS_CRASHED,
            severity=Severity.SEV2,
            consequence=name == "SIGABRT",
            text=f"crashed with {name}",
        )
    if exit_code is None or exit_code == 0:
        return None
    return Exit(
        cause=Cause.PROCESS_FAILED,
        severity=Severity.SEV2,
        consequence=True,
        text=f"exited with code {exit_code}",
    )
