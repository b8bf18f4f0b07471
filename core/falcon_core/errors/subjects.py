"""Find the process that a line of output is about, where another process may have printed it.

Launchers print the lines of many processes, a driver raises the error of its worker again, and a rank names the peer
that it lost. A node is blamed for its own processes' words alone, so that such a line has to name whose it is.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

_ADDRESS: Final = r"(?P<address>\d{1,3}(?:\.\d{1,3}){3}|\[?[0-9a-f]{1,4}(?::[0-9a-f]{0,4}){2,7}\]?)"
_HOST: Final = r"(?P<address>[\w.-]{1,253})"
# What stands before a line that another process has printed. Ray: "Log deduplication" of its user guide; Open MPI:
# --tag-output; Slurm: srun --label; pdsh, DeepSpeed's own start on several hosts.
_PREFIXES: Final = (
    re.compile(r"^\s*\([\w.<>-]+ pid=(?P<pid>\d{1,10})(?:, ip=" + _ADDRESS + r")?\)\s?"),
    re.compile(r"^\s*\[\d{1,9},(?P<rank>\d{1,9})\]<std(?:err|out|diag)>:\s?"),
    re.compile(r"^\s{0,8}(?P<rank>\d{1,9}): (?=.*\S)"),
    re.compile(r"^\s*\[?(?:rank|default)[ _]?(?P<rank>\d{1,9})\]?: ?"),
    re.compile(r"^\(RANK (?P<rank>\d{1,9})\) "),  # torch.distributed.checkpoint, of an error that it hands on
)
# What stands in a line about another process; the first that matches counts.
_NAMED_PROCESSES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        # Ray raises a task's error again in the process that waits for it (ray/exceptions.py, RayTaskError).
        r"\b\w[\w.]*(?:\[[^\]]*\])? ?\(pid=(?P<pid>\d{1,10})(?:, ip=" + _ADDRESS + r")?",
        r"\bpid=(?P<pid>\d{1,10}), ip=" + _ADDRESS,
        # torch.distributed.checkpoint hands the errors of some ranks to all of them.
        r"CheckpointException ranks:dict_keys\(\[(?P<rank>\d{1,9})",
        r"^Traceback \(most recent call last\): \(RANK (?P<rank>\d{1,9})\)",
        r"\(RANK (?P<rank>\d{1,9})\)",
        # Launchers on the process that failed: torchrun, Slurm, Open MPI, MPICH, DeepSpeed, Composer, accelerate.
        r"\brank\s*: (?P<rank>\d{1,9}) \(local_rank: \d",
        r"\b[Gg]lobal rank (?P<rank>\d{1,9}) \(PID (?P<pid>\d{1,10})\)",
        r"\bprocess rank (?P<rank>\d{1,9}) with PID (?P<pid>\d{1,10}) on node " + _HOST,
        r"\b(?P<address>[\w.-]+): tasks? (?P<rank>\d{1,9})\b[^:]*: ",
        r"\bfailed \(exitcode: ?-?\d+\) local_rank: \d+ \(pid: (?P<pid>\d{1,10})\)",
        r"\bProcess (?P<pid>\d{1,10}) exits with return code",
        r"\bPID (?P<pid>\d{1,10}) RUNNING AT " + _HOST,
        r"\bMPI_ABORT was invoked on rank (?P<rank>\d{1,9})",
        # JAX's coordination service names tasks, which are processes of the job.
        r"/job:[\w.-]+/replica:\d+/task:(?P<rank>\d{1,9})\b(?:[^/]{0,60}\b(?:heartbeat|unhealthy|disconnect|restart|failed"
        r"|died|preempt|incarnation|unexpectedly|error))",
        r"(?:[Tt]imed out task names:|unhealthy tasks?:?|stopped sending heartbeats|lost tasks?:?|error from)[^/]{0,80}"
        r"/job:[\w.-]+/replica:\d+/task:(?P<rank>\d{1,9})\b",
        # Gloo, NCCL, PyTorch's store, and what a rank says of its peer in words.
        r"\b(?:by|from|to|with|of) (?:the )?(?:remote )?(?:peer|process|rank|host|worker) (?:\d+ )?\[?" + _ADDRESS,
        r"\b(?:by|from|to) (?:remote )?peer (?P<address>[\w.-]+)<\d+>",
        r"\b(?:connect|connection|send|recv|write|read)\b.{0,40}\b(?:to|from|with) (?P<address>[\w.-]+)<\d+>",
        r"\b(?:peer|remote|other|dead|failed|lost|missing|root)[ _](?:rank|process|worker) ?[:=]? ?(?P<rank>\d{1,9})\b",
        r"\b(?:from|by|waiting for|reach) [Rr]ank ?:? ?(?P<rank>\d{1,9})\b",
        r"\b[Rr]ank (?P<rank>\d{1,9}) (?:is |has |was )?(?:dead|died|exited|failed|gone|left|lost|killed|crashed"
        r"|aborted|disconnected|terminated|unresponsive|not respond)",
    )
)


class Subject(msgspec.Struct, frozen=True):
    """A process, as far as a text names it."""

    rank: int | None = None
    pid: int | None = None
    address: str = ""  # of its host: an IP address or a name


def peeled(line: str) -> tuple[str, Subject | None]:
    """Return a line without the marks of launchers before it, and the process that the innermost mark names."""
    whose = None
    for _ in range(3):  # Ray's mark before PyTorch's, and the like
        found = next((match for prefix in _PREFIXES if (match := prefix.match(line)) is not None), None)
        if found is None:
            break
        line, whose = line[found.end() :], _subject(found)
    return line, whose


def subject_of(text: str) -> Subject | None:
    """Return the process that a text is about, by its marks or its words; None where it names none."""
    rest, marked = peeled(text)
    for pattern in _NAMED_PROCESSES:
        found = pattern.search(rest)
        if found is not None:
            return _subject(found)
    return marked


def _subject(found: re.Match[str]) -> Subject:
    parts = found.groupdict()
    rank, pid = parts.get("rank"), parts.get("pid")
    return Subject(
        rank=int(rank) if rank is not None else None,
        pid=int(pid) if pid is not None else None,
        address=(parts.get("address") or "").strip("[]"),
    )
