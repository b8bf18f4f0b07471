"""Define how far a failure reaches, and what the end of a process means.

Severities are those of Unicron's table 1, as far as they can be observed without reading logs. A class, its cause and
its severity do not determine the repair: the ladder (``recovery``) chooses it, by budget and by place.
"""

from __future__ import annotations

import signal as signals

import msgspec

from falcon_core.model import Cause, Severity

LOST_CONNECTION = Severity.SEV1  # "node health monitoring: lost connection"
EXITED_ABNORMALLY = Severity.SEV2  # "process supervision: exited abnormally"


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """The meaning of a process's end.

    ``consequence``: a peer's death ends a process in this way too (a broken collective raises or aborts), so that it is
    no proof of a fault of its own. ``asked``: the process was asked to end, as a launcher does after another
    rank's failure.
    """

    cause: Cause
    severity: Severity
    consequence: bool
    text: str
    asked: bool = False


_REQUESTS = frozenset({"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"})
_SHELL_SIGNAL_BASE = 128  # a shell reports a child's signal n as exit code 128 + n


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def classify_exit(
    *, exit_code: int | None, signal: int | None, oom_killed: bool, uncaught: bool = False
) -> Exit | None:
    """Classify a process's end; None for a good one (exit code 0).

    ``uncaught``: an exception had ended its program before, as its interpreter has noted.
    """
    # Before the signal: it would say SIGKILL alone, which has many senders.
    if oom_killed:
        return Exit(
            cause=Cause.OUT_OF_MEMORY,
            severity=EXITED_ABNORMALLY,
            consequence=False,
            text="killed by the kernel: out of memory (its container's limit)",
        )
    # A shell that ran the program reports its signal as 128 + number.
    if signal is None and exit_code is not None and exit_code > _SHELL_SIGNAL_BASE:
        number = exit_code - _SHELL_SIGNAL_BASE
        signal = number if _signal_name(number).startswith("SIG") else None
    if signal is not None:
        name = _signal_name(signal)
        if name == "SIGKILL" or name in _REQUESTS:
            return Exit(
                cause=Cause.PROCESS_KILLED,
                severity=EXITED_ABNORMALLY,
                consequence=False,
                text=f"killed by {name}",
                asked=name in _REQUESTS,
            )
        if uncaught:
            # Only the clean-up was left. It aborts where a library's thread wants the interpreter once more, or where
            # a device refuses to be released after an error: the crash is the form of the end, the exception its cause.
            return Exit(
                cause=Cause.PROCESS_FAILED,
                severity=EXITED_ABNORMALLY,
                consequence=True,
                text=f"raised an uncaught error, and crashed with {name} while it cleaned up",
            )
        return Exit(
            cause=Cause.PROCESS_CRASHED,
            severity=EXITED_ABNORMALLY,
            # Libraries abort when a peer is lost; the other signals of a crash are the process's own.
            consequence=name == "SIGABRT",
            text=f"crashed with {name}",
        )
    if exit_code is None or exit_code == 0:
        return None
    return Exit(
        cause=Cause.PROCESS_FAILED,
        severity=EXITED_ABNORMALLY,
        consequence=True,
        text=f"exited with code {exit_code}",
    )
