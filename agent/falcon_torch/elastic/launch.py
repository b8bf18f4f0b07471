"""Start the ranks of a pod, and replace a rank that has failed while the others go on.

    python -m falcon_torch.elastic --procs 4 train.py ARGUMENTS

The pods are those of ``torchrun``'s environment (``PET_NNODES``, ``PET_NODE_RANK``, ``MASTER_ADDR``, ``MASTER_PORT``),
which a job with ``launcher: Own`` has; without it there is one. The first pod's launcher serves the store and the
meeting, so both live as long as this pod does, whichever rank ends. Any other pod may be lost: the launcher of a pod
that is made in its place, with the same environment, lets its ranks join. What no launcher can mend, the loss of the
first pod or of the training's state among them, ends the launcher: the job's ranks are restarted.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Dict, List, Sequence

import torch.distributed as dist

from falcon_torch.elastic import refusals
from falcon_torch.elastic.attendance import PROCESS
from falcon_torch.elastic.group_report import GroupReport
from falcon_torch.elastic.meeting import Meeting
from falcon_torch.elastic.member import ENDED_EXIT, MEETING_KEY, STATE_LOST_EXIT
from falcon_torch.elastic.process_group import is_supported

LOOK_SECONDS = 0.05
SAVE_SECONDS = 30.0  # from SIGTERM to SIGKILL, for the other ranks of a pod in which one is not replaced
KILL_SECONDS = 10.0  # after which a killed process is left to the kernel


class Launcher:
    """The ranks of this pod."""

    def __init__(self, command: Sequence[str], procs: int, replacements: int, patience_seconds: float) -> None:
        """Serve the store and the meeting, in the first pod.

        Args:
            command: of a rank.
            procs: ranks of a pod.
            replacements: of a rank that has failed, in this pod.
            patience_seconds: how long ranks that have arrived for a new group wait for one that does not come.
        """
        environ = os.environ
        self._command, self._procs, self._replacements = command, procs, replacements
        nodes, self._node = int(environ.get("PET_NNODES", "1")), int(environ.get("PET_NODE_RANK", "0"))
        self._report = GroupReport.of_this_pod()
        address, port = environ.get("MASTER_ADDR", "127.0.0.1"), int(environ.get("MASTER_PORT", "0"))
        if self._node == 0:
            self._store: Any = dist.TCPStore(
                address, port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
            )
            on_refused = partial(refusals.note, self._store)
            self._meeting = Meeting(nodes * procs, patience_seconds, on_refused, self._report.look)
            self._store.set(MEETING_KEY, str(self._meeting.port))
            port = self._store.port
        self._place = address, port
        self._common = {
            **environ,
            "FALCON_ELASTIC": "1",
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(nodes * procs),
            "LOCAL_WORLD_SIZE": str(procs),
            "OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS", "1"),
        }
        self._ranks: Dict[int, refusals.RankProcess] = {}
        self._failed: Dict[int, int] = {}  # exit codes of ranks that were replaced
        self._stopped = 0  # the signal that has asked all to end
        self._refusals = refusals.Refusals(self._ranks)
        self._refusals.watch(self._connected)

    def run(self) -> int:
        """Return the exit code once all ranks have ended: that of the first that failed and was not replaced."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        for local_rank in range(self._procs):
            self._start(self._node * self._procs + local_rank)
        first = 0
        while self._ranks:
            for rank, code in self._ended():
                failure = self._failure(rank, code)
                first = first or failure
            time.sleep(LOOK_SECONDS)
        return _exit_code(first)

    def _failure(self, rank: int, code: int) -> int:
        """Replace a rank that has failed, where that helps; return the code of a failure that stays, or 0."""
        if code == ENDED_EXIT:
            # The others go on to their ends: they may have something to save. Where this pod took a lost pod's place,
            # nothing is known of what had failed there.
            return self._failed.get(rank, code)
        if code == 0 or self._stopped:
            return code
        if not self._can_replace(code):
            _say(f"rank {rank} has ended with {code}: all ranks of this pod end")
            self._end()
            return code
        self._replacements -= 1
        self._failed[rank] = code
        _say(f"rank {rank} has ended with {code} and is replaced")
        self._start(rank)
        return 0

    def _can_replace(self, code: int) -> bool:
        # Before the first group there is nothing that others could go on with.
        has_begun = self._node != 0 or self._meeting.number > 0
        return has_begun and self._replacements > 0 and code != STATE_LOST_EXIT

    def _connected(self) -> Any:
        """Return the job's store. Raises RuntimeError."""
        if self._node == 0:
            return self._store
        return dist.TCPStore(*self._place, is_master=False, timeout=timedelta(seconds=60))

    def _ended(self) -> List[tuple[int, int]]:
        ended = [(rank, self._code(started)) for rank, started in self._ranks.items()]
        for rank, code in ended:
            if code is not None:
                self._report.end(rank, self._ranks.pop(rank).number, code)
        return [(rank, code) for rank, code in ended if code is not None]

    def _code(self, started: refusals.RankProcess) -> int | None:
        """Return with what a process has ended; None: it runs."""
        return -signal.SIGKILL if started.number in self._refusals.abandoned else started.process.poll()

    def _start(self, rank: int) -> None:
        number = refusals.new_number()
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank - self._node * self._procs), PROCESS: str(number)}
        process = subprocess.Popen(self._command, env={**self._common, **own})
        self._ranks[rank] = refusals.RankProcess(number, process)
        # The signal may have come before this rank was among those that get it.
        if self._stopped:
            process.send_signal(self._stopped)

    def _stop(self, number: int, _frame: Any) -> None:
        self._stopped = number
        for started in list(self._ranks.values()):
            started.process.send_signal(number)

    def _end(self) -> None:
        """End all ranks: each has its time to save."""
        for number, seconds in ((signal.SIGTERM, SAVE_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
            self._stop(number, None)
            until = time.monotonic() + seconds
            for started in self._ranks.values():
                with suppress(subprocess.TimeoutExpired):
                    started.process.wait(max(0.0, until - time.monotonic()))
        self._ranks.clear()


def _exit_code(code: int) -> int:
    """Return what a shell says of a process that ended with ``code``."""
    return code if code >= 0 else 128 - code


def _say(text: str) -> None:
    print(f"falcon: {text}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m falcon_torch.elastic", description=__doc__.split("\n")[0])
    parser.add_argument("--procs", type=int, default=int(os.environ.get("PET_NPROC_PER_NODE", "1")), help="ranks here")
    parser.add_argument("--replacements", type=int, default=3, help="of ranks that fail, before all of them end")
    patience = "seconds that ranks which have arrived wait for one that has not"
    parser.add_argument("--patience", type=float, default=600.0, help=patience)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if not is_supported():
        _say("this PyTorch cannot change a group in living processes: that takes 2.15; start the script with torchrun")
        return 2
    command = [sys.executable, options.script, *options.arguments]
    return Launcher(command, options.procs, options.replacements, options.patience).run()
