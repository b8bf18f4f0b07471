"""Fork the ranks of trainings, for ``forking.Ranks``: ``forked_ranks.py DESCRIPTOR``.

PyTorch is imported once, which takes a process seconds of CPU. A training is a message on the socket ``DESCRIPTOR``: a
JSON object with its command, its environment, and each rank's environment and output files (null: standard error of
the test). Beside it come two descriptors: a pipe, and the test's standard error. The answer is the process id of the
training, which leads a process group. It writes two lines to the pipe, each a JSON list: the process ids of its ranks,
and, when all have ended, their exit codes. A rank that a signal killed has a negative code.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import signal
import socket
import sys
from pathlib import Path
from typing import Any

# What each of the programs imports; an optimizer imports the first.
IMPORTED = ("torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp")
MOST_BYTES = 1 << 17  # of a message
over = False  # this process's program has returned


def leave() -> None:
    """End a rank whose program is over. The first function that was registered to run at exit runs last.

    Taking PyTorch's modules apart would take a second of CPU.
    """
    if over:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def next_training(requests: socket.socket) -> tuple[dict[str, Any], int, int]:
    """Fork a process for each training; return in it what was asked for, and the two descriptors."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MOST_BYTES, 2)
        if not message:
            os._exit(0)  # the tests are over
        pid = os.fork()
        if not pid:
            requests.close()
            return json.loads(message), *descriptors
        os.setpgid(pid, pid)  # before the answer: from then on the test may kill the group
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(str(pid).encode())


def become(rank: dict[str, Any], environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment, **rank["environment"])
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if rank[name] is not None:
            os.dup2(os.open(rank[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), descriptor)


def forked(training: dict[str, Any], pipe: int) -> None:
    """Fork the ranks. Return in each of them; the process itself waits for them and ends."""
    pids = []
    for rank in training["ranks"]:
        pid = os.fork()
        if not pid:
            os.close(pipe)
            become(rank, training["environment"])
            return
        pids.append(pid)
    os.write(pipe, json.dumps(pids).encode() + b"\n")
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    os.write(pipe, json.dumps(codes).encode() + b"\n")
    os._exit(0)


if __name__ == "__main__":
    atexit.register(leave)
    for name in IMPORTED:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for a training
    wanted, pipe, errors = next_training(socket.socket(fileno=int(sys.argv[1])))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(errors, 2)
    os.close(errors)
    forked(wanted, pipe)
    sys.argv = wanted["command"]
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [str(Path(sys.argv[0]).parent), *(folder for folder in folders if folder)]
    runpy.run_path(sys.argv[0], run_name="__main__")
    over = True
