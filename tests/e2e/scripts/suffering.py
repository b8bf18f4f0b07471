"""The example's training (examples/train_gpt.py), which takes faults on demand.

Before each step a rank looks into the folder of its checkpoints, which all ranks and who orders the faults share:

- ``order-RANK``: a fault that the rank is to have once, a JSON object of ``Order``'s fields in ``orders``;
- ``storage-away``: until when the storage is away (unix seconds);
- ``finish``: the step after which training ends well.

It writes ``steps-RANK.jsonl``, a line a step, and ``stamps.jsonl``, the times at which ordered faults happened.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

sys.path.insert(0, "/opt/examples")
import train_gpt  # type: ignore[import-not-found]

FOLDER = Path(os.environ["FOLDER"])
PAUSE_SECONDS = float(os.environ["PAUSE_SECONDS"])  # of a step
RANK = int(os.environ["RANK"])
MEBIBYTE = 1 << 20
DISK_MEBIBYTES = 300  # more than the container's limit of local storage
_step = train_gpt.run_step


def stamp(order: str, what: str) -> None:
    """Note when something happened, by the machine's clock."""
    line = json.dumps({"order": order, "what": what, "at": time.time()})
    with (FOLDER / "stamps.jsonl").open("a") as file:
        file.write(f"{line}\n")


class Log(train_gpt.Log):  # type: ignore[misc]
    """The example's log, which also notes the steps of each rank in the shared folder."""

    def __init__(self, rank: int, as_json: bool) -> None:
        super().__init__(rank, as_json)
        self._steps = (FOLDER / f"steps-{rank}.jsonl").open("a", buffering=1)

    def __call__(self, event: str, **values: float | str) -> None:
        super().__call__(event, **values)
        if event == "step":
            self._steps.write(json.dumps({"life": int(os.environ["TORCHELASTIC_RESTART_COUNT"]), **values}) + "\n")


def check_storage() -> None:
    away = FOLDER / "storage-away"
    if away.exists() and time.time() < float(away.read_text()):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(FOLDER))


def use_memory() -> NoReturn:
    held = []
    while True:
        held.append(bytearray(os.urandom(1) * (64 * MEBIBYTE)))


def use_disk() -> NoReturn:
    with Path("/tmp/full").open("wb") as file:
        for _ in range(DISK_MEBIBYTES):
            file.write(os.urandom(MEBIBYTE))
    sleep_for_ever()


def sleep_for_ever() -> NoReturn:
    while True:
        time.sleep(0.5)


def obey(order: dict[str, str]) -> None:
    """Have the fault that was ordered."""
    number = order["id"]

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.__excepthook__(kind, error, trace)
        stamp(number, "printed")

    sys.excepthook = report
    stamp(number, "begun")
    match order["what"]:
        case "raise":
            raise RuntimeError(order["text"])
        case "exit":
            raise SystemExit(int(order["text"]))
        case "memory":
            use_memory()
        case "disk":
            use_disk()
        case "sleep":
            sleep_for_ever()
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case unknown:
            raise ValueError(f"order {number}: no fault {unknown!r}")


def run_step(model: Any, corpus: Any, args: Any, step: int, device: Any) -> Any:
    finish = FOLDER / "finish"
    if finish.exists() and step > int(finish.read_text()):
        raise SystemExit(0)
    check_storage()
    order = FOLDER / f"order-{RANK}"
    if order.exists():
        taken = json.loads(order.read_text())
        order.unlink()  # the next life must not have it again
        obey(taken)
    time.sleep(PAUSE_SECONDS)
    return _step(model, corpus, args, step, device)


if __name__ == "__main__":
    check_storage()
    train_gpt.Log, train_gpt.run_step = Log, run_step
    train_gpt.main()
