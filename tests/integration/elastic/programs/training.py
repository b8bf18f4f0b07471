"""Train in a group whose ranks are killed and replaced, with one process that forks them: PyTorch is imported once.

    training.py SPEC

SPEC is JSON: ``folder`` of the logs, ``ranks``, ``steps``, ``micro_batches``, ``losses`` (where a rank is lost: its
number, a step, and ``done``: micro-batches that it has done, ``sums``: calls of the exchange that are done, ``after``:
1, the exchange is over, ``change``: 1, a new group is made; or, in any step, ``broadcast``: 1), ``signal`` that it gets
there, ``faults`` (in which call of an exchange a rank loses the result, as where a connection breaks at its end),
``replace`` (whether lost ranks are replaced), ``foreign`` (the state has an object that makes this folder when it is
unpickled), ``plain`` (no launcher: the group is that of the environment),
``timeout`` of calls and ``patience`` [s]. Each rank writes its own log of JSON lines. Prints the exit codes of all
ranks, and the parameters that one process computes without a group.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist

from falcon_torch.elastic import gradients, process_group
from falcon_torch.elastic.group import MEETING_KEY, Group
from falcon_torch.elastic.meeting import Meeting
from falcon_torch.elastic.process_group import BrokenError, ProcessGroup

SEGMENT_BYTES = 256  # three segments
STOPPED_SECONDS = 8.0
RECONFIGURE_SECONDS = 3.0  # in which a member of a new group is found to be lost


class Log:
    """What one process did, a line of JSON for each event."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / f"{os.environ['RANK']}-{os.getpid()}").open("w")

    def write(self, *event: Any) -> None:
        print(json.dumps([time.monotonic(), *event]), file=self._file, flush=True)


class Foreign:
    """A part of the state that is no number, tensor or container of such."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self._folder,)

    def state_dict(self) -> dict[str, Any]:
        return {"foreign": self}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError(state)


def batch(step: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + number)
    inputs = torch.randn(4, 8, generator=generator, dtype=torch.double)
    return inputs, inputs.sin().sum(1, keepdim=True)


def lose(spec: dict[str, Any], log: Log, **place: int) -> None:
    """Send this process the signal if the test wants it here, and it is not a replacement."""
    wanted = {"rank": int(os.environ["RANK"]), **place}
    if os.environ["REPLACES"] == "0" and wanted in spec["losses"]:
        log.write("lost")
        if spec["signal"] == signal.SIGSTOP and os.fork() == 0:
            time.sleep(STOPPED_SECONDS)
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
        os.kill(os.getpid(), spec["signal"])


def network() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
    return model, torch.optim.Adam(model.parameters(), lr=0.02)


def numbers(model: torch.nn.Module) -> list[float]:
    return [number for parameter in model.parameters() for number in parameter.detach().flatten().tolist()]


def loss_of(model: torch.nn.Module, step: int, number: int) -> torch.Tensor:
    inputs, targets = batch(step, number)
    return (model(inputs) - targets).square().mean()


def train(spec: dict[str, Any]) -> None:
    log = Log(Path(spec["folder"]))
    gradients.SEGMENT_BYTES, process_group.RECONFIGURE_SECONDS = SEGMENT_BYTES, RECONFIGURE_SECONDS
    torch.manual_seed(int(os.environ["RANK"]) + 10 * int(os.environ["REPLACES"]))  # the group has to make states alike
    model, optimizer = network()
    others: list[Any] = [optimizer, *([Foreign(spec["foreign"])] if spec["foreign"] else [])]
    group = Group(
        model,
        *others,
        micro_batches=spec["micro_batches"],
        step=5 * int(os.environ["RANK"]),  # the first rank's counts
        timeout_seconds=spec["timeout"],
    )
    log.write("joined", group.step)
    sums = 0
    exchange = ProcessGroup.sum

    def counted(own: ProcessGroup, values: torch.Tensor) -> None:
        nonlocal sums
        lose(spec, log, step=group.step, sums=sums)
        exchange(own, values)
        if {"rank": int(os.environ["RANK"]), "step": group.step, "sums": sums} in spec["faults"]:
            sums = 100  # once
            raise BrokenError("the test's")
        sums += 1

    change, broadcast = ProcessGroup.change, ProcessGroup.broadcast

    def changed(own: ProcessGroup, *new: Any) -> None:
        lose(spec, log, step=group.step, change=1)
        change(own, *new)

    def sent(own: ProcessGroup, *what: Any) -> None:
        lose(spec, log, broadcast=1)
        broadcast(own, *what)

    ProcessGroup.sum, ProcessGroup.change, ProcessGroup.broadcast = counted, changed, sent
    for step in group.steps(spec["steps"]):
        sums = 0
        for done, number in enumerate(group.micro_batches(), 1):
            loss = loss_of(model, step, number)
            (loss / spec["micro_batches"]).backward()
            log.write("micro", step, number)
            lose(spec, log, step=step, done=done)
            time.sleep(0.002)
        lose(spec, log, step=step, after=1)
        optimizer.step()
        log.write("step", step, group.size)
    log.write("end", numbers(model))


def reference(spec: dict[str, Any]) -> list[float]:
    """Return the parameters after the same training in one process."""
    torch.manual_seed(0)
    model, optimizer = network()
    for step in range(spec["steps"]):
        optimizer.zero_grad()
        for number in range(spec["micro_batches"]):
            (loss_of(model, step, number) / spec["micro_batches"]).backward()
        optimizer.step()
    return numbers(model)


def fork(spec: dict[str, Any], rank: int, replaces: int) -> int:
    child = os.fork()
    if child == 0:
        os.environ.update(RANK=str(rank), REPLACES=str(replaces))
        try:
            train(spec)
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def main() -> None:
    spec = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    # A thread of the store or of the meeting must not be in a fork: a process of their own serves both.
    ready, told = os.pipe()
    server = os.fork()
    if server == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
        store.set(MEETING_KEY, str(Meeting(spec["ranks"], spec["patience"]).port))
        os.write(told, str(store.port).encode())
        signal.pause()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.read(ready, 20).decode(), WORLD_SIZE=str(spec["ranks"]))
    os.environ.update({"TORCHELASTIC_USE_AGENT_STORE": "True"} if spec["plain"] else {"FALCON_ELASTIC": "1"})
    running = {fork(spec, rank, 0): rank for rank in range(spec["ranks"])}
    codes = []
    while running:
        child, status = os.wait()
        rank = running.pop(child)
        codes.append(os.waitstatus_to_exitcode(status))
        if codes[-1] != 0 and spec["replace"]:
            running[fork(spec, rank, 1)] = rank
    os.kill(server, signal.SIGKILL)
    os.waitpid(server, 0)
    print(json.dumps([sorted(codes), reference(spec)]))


main()
