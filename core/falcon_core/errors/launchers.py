"""Find the rank that failed first in the output of a user's own launcher: torchrun, its relatives, Open MPI.

Falcon sees such a launcher as one process, and its exit code does not identify the rank below it.
"""

from __future__ import annotations

import re
import signal as signals
from typing import Final

from falcon_core.errors.taxonomy import classify_exit
from falcon_core.errors.tracebacks import without_prefix
from falcon_core.wire.launcher.launch import FirstEnd

_MOST_CHARACTERS: Final = 600  # of what a launcher says of one rank
# What each begins its report with, and the report itself. PyTorch: torch/distributed/elastic/multiprocessing/errors;
# Open MPI: help-orterun.txt, and help-prterun.txt since 5.0.
_REPORTS: Final = (
    (
        "noticed that process rank",
        re.compile(r"\brank (?P<rank>\d{1,9}) with PID [^\n]* exited on\s+signal (?P<signal>\d{1,3})"),
    ),
    (
        "Process name: [",
        re.compile(r"\[(?:\[\d+,\d+\]|[^\],\s]+),\s?(?P<rank>\d{1,9})\]\s+Exit code:\s+(?P<code>\d{1,3})"),
    ),
)
_FAILURES: Final = "Failures:"
_ROOT_CAUSE: Final = "Root Cause (first observed failure):"
_FAILURE: Final = re.compile(
    r"\brank\s*: (?P<rank>\d{1,9}) \(local_rank: (?P<local_rank>\d{1,9})\)"
    r"\s+exitcode\s*: (?:-(?P<signal>\d{1,3})|(?P<code>\d{1,3}))"
)


def first_end(output: str) -> FirstEnd | None:
    """Read the rank that failed first from the end of a launcher's output; None if the output does not show it."""
    text = "\n".join(map(without_prefix, output.splitlines()))
    found = _of_torchrun(text)
    if found is not None:
        return found
    for begin, report in _REPORTS:
        at = text.rfind(begin)
        match = report.search(text, at, at + _MOST_CHARACTERS) if at >= 0 else None
        if match is not None:
            return _end(match.groupdict())
    return None


def _of_torchrun(text: str) -> FirstEnd | None:
    """Return the failure that explains the others in torchrun's last report.

    Its "root cause" is what it saw first, and it looks as seldom as each five seconds: an end that no peer can cause
    counts before one that a broken collective brings about. SIGTERM is torchrun's own.
    """
    at = text.rfind(_ROOT_CAUSE)
    if at < 0:
        return None
    others = _FAILURE.finditer(text, max(0, text.rfind(_FAILURES, 0, at)), at)
    first = _FAILURE.search(text, at, at + _MOST_CHARACTERS)
    ends = [_end(match.groupdict()) for match in (first, *others) if match is not None]
    return min((end for end in ends if end.signal != signals.SIGTERM), key=_is_consequence, default=None)


def _is_consequence(end: FirstEnd) -> bool:
    meaning = classify_exit(exit_code=end.exit_code, signal=end.signal, oom_killed=False)
    return meaning is None or meaning.consequence


def lines_of(output: str, rank: int) -> str:
    """Return the lines that PyTorch marks as the rank's ("[rank3]: …"); empty where there are none."""
    return "\n".join(line for line in output.splitlines() if line.startswith(f"[rank{rank}]:"))


def _end(found: dict[str, str | None]) -> FirstEnd:
    number = {name: int(digits) for name, digits in found.items() if digits is not None}
    return FirstEnd(
        rank=number["rank"],
        local_rank=number.get("local_rank"),
        exit_code=number.get("code"),
        signal=number.get("signal"),
    )
