"""Become the ranks of a training: ``forked_ranks.py PROGRAM [ARGUMENT …]``, for ``forking.Ranks``.

PyTorch is imported once, which takes each process seconds of CPU, and every rank is forked from here. Standard input
has a JSON list with each rank's environment, and the files of its output (null: inherited). When all ranks have ended,
their exit codes are printed as a JSON list; a rank that a signal killed has a negative code.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
from pathlib import Path

# What each of the programs imports; an optimizer imports the first.
IMPORTED = ("torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp")


def forked() -> bool:
    """Fork the ranks, and wait for them. Return True in each of them."""
    pids = []
    for rank in json.load(sys.stdin):
        pid = os.fork()
        if not pid:
            os.environ.update(rank["environment"])
            for name, descriptor in (("stdout", 1), ("stderr", 2)):
                if rank[name] is not None:
                    os.dup2(os.open(rank[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), descriptor)
            return True
        pids.append(pid)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]))
    return False


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    if forked():
        program = sys.argv[1]
        sys.argv = sys.argv[1:]
        sys.path[0] = str(Path(program).parent)
        runpy.run_path(program, run_name="__main__")
