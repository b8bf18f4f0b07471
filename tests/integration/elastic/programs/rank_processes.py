"""Fork the ranks of a training, lose some of them where a test wants it, and log what each of them does.

``run`` takes what a rank does and a specification, a dictionary: ``folder`` of the logs, ``ranks``, ``losses`` (where a
rank is lost: its number, a step, and ``done``: micro-batches that it has done, ``sums``: calls of the exchange that are
done, ``after``: 1, the exchange is over, ``stepped``: 1, the optimizer's step too, ``change``: 1, a new group is made;
or, in any step, ``broadcast``: 1), ``signal`` that it gets there, ``faults`` (in which call of an exchange a rank loses
the result, as where a connection breaks at its end), ``replace`` (whether lost ranks are replaced), ``plain`` (no
launcher: the group is that of the environment) and ``patience`` [s]. PyTorch is imported once, by the process that
forks.
"""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from falcon_torch.elastic import gradients, process_group
from falcon_torch.elastic.group import Group
from falcon_torch.elastic.meeting import Meeting
from falcon_torch.elastic.member import ENDED_EXIT, MEETING_KEY
from falcon_torch.elastic.process_group import BrokenError, ProcessGroup

LAST_STEPS = 10
MICRO_BATCH_SECONDS, LONG_MICRO_BATCH_SECONDS = 0.002, 0.2
SEGMENT_BYTES = 256  # a small model has a few segments
STOPPED_SECONDS = 8.0
RECONFIGURE_SECONDS = 3.0  # in which a member of a new group is found to be lost

Spec = dict[str, Any]


class Log:
    """What one process did, a line of JSON for each event."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / f"{os.environ['RANK']}-{os.getpid()}").open("w")

    def write(self, *event: Any) -> None:
        print(json.dumps([time.monotonic(), *event]), file=self._file, flush=True)


class Losses:
    """The places at which this process is lost, or loses the result of a call."""

    def __init__(self, spec: Spec, log: Log) -> None:
        gradients.SEGMENT_BYTES, process_group.RECONFIGURE_SECONDS = SEGMENT_BYTES, RECONFIGURE_SECONDS
        self._spec, self._log = spec, log
        self._sums = 0

    def lose(self, **place: int) -> None:
        """Send this process the signal if the test wants it here, and it is not a replacement."""
        wanted = {"rank": int(os.environ["RANK"]), **place}
        if os.environ["REPLACES"] == "0" and wanted in self._spec["losses"]:
            self._log.write("lost")
            if self._spec["signal"] == signal.SIGSTOP and os.fork() == 0:
                time.sleep(STOPPED_SECONDS)
                os.kill(os.getppid(), signal.SIGCONT)
                os._exit(0)
            os.kill(os.getpid(), self._spec["signal"])

    def begin_step(self) -> None:
        self._sums = 0

    def take_time(self, step: int) -> None:
        """Take the time of a micro-batch: longer in the last steps, while a replacement has not joined."""
        late = self._spec["replace"] and step >= self._spec["steps"] - LAST_STEPS and self._are_missing()
        time.sleep(LONG_MICRO_BATCH_SECONDS if late else MICRO_BATCH_SECONDS)

    def _are_missing(self) -> bool:
        logs = [log.read_text() for log in Path(self._spec["folder"]).iterdir()]
        lost = sum(', "lost"]' in log for log in logs)
        return sum(', "joined", ' in log for log in logs) < self._spec["ranks"] + lost

    def watch(self, group: Group) -> None:
        """Count the calls of the group's exchanges, and be lost in them."""
        exchange, change, broadcast = ProcessGroup.sum, ProcessGroup.change, ProcessGroup.broadcast

        def counted(own: ProcessGroup, values: torch.Tensor) -> None:
            self.lose(step=group.step, sums=self._sums)
            exchange(own, values)
            if {"rank": int(os.environ["RANK"]), "step": group.step, "sums": self._sums} in self._spec["faults"]:
                self._sums = 100  # once
                raise BrokenError("the test's")
            self._sums += 1

        def changed(own: ProcessGroup, *new: Any) -> None:
            self.lose(step=group.step, change=1)
            change(own, *new)

        def sent(own: ProcessGroup, *what: Any) -> None:
            self.lose(broadcast=1)
            broadcast(own, *what)

        ProcessGroup.sum, ProcessGroup.change, ProcessGroup.broadcast = counted, changed, sent


def numbers(model: torch.nn.Module) -> list[float]:
    return [number for parameter in model.parameters() for number in parameter.detach().flatten().tolist()]


def fork(rank: int, replaces: int, train: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        os.environ.update(RANK=str(rank), REPLACES=str(replaces))
        # A fork has to make its pool of threads again. Where autograd's threads do that at the same time, one fails.
        torch.set_num_threads(1)
        try:
            train()
        except SystemExit as ended:
            os._exit(int(ended.code or 0))
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def run(spec: Spec, train: Callable[[Spec], None]) -> list[int]:
    """Return the exit codes of all processes, ascending. ``spec`` has ``steps`` as well, if ranks are replaced."""
    torch.set_num_threads(1)
    # A thread of the store or of the meeting must not be in a fork: a process of their own serves both.
    ready, said = os.pipe()
    server = os.fork()
    if server == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
        store.set(MEETING_KEY, str(Meeting(spec["ranks"], spec["patience"]).port))
        os.write(said, str(store.port).encode())
        signal.pause()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.read(ready, 20).decode(), WORLD_SIZE=str(spec["ranks"]))
    os.environ.update({"TORCHELASTIC_USE_AGENT_STORE": "True"} if spec["plain"] else {"FALCON_ELASTIC": "1"})
    running = {fork(rank, 0, lambda: train(spec)): rank for rank in range(spec["ranks"])}
    codes = []
    while running:
        child, status = os.wait()
        rank = running.pop(child)
        codes.append(os.waitstatus_to_exitcode(status))
        if codes[-1] not in (0, ENDED_EXIT) and spec["replace"]:
            running[fork(rank, 1, lambda: train(spec))] = rank
    os.kill(server, signal.SIGKILL)
    os.waitpid(server, 0)
    return sorted(codes)
