"""Ranks whose state follows from their number and step: shards.py. PyTorch is imported once, each life is a fork.

Each line of standard input is a life: its environment, its folder, and the steps that it saves after it has loaded. It
prints what it loaded, whether that is byte for byte what was saved, and what the client has warned of; then, by
``"forever"``, it saves one step after another until it is killed. With ``"cgroup"`` it does so in that memory cgroup,
where it takes more and more memory, so that the kernel is who kills it.
"""

import json
import logging
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

from falcon_torch import Checkpoint

ELEMENTS = 3_000_003  # bytes


def shard(rank, step):
    """Return the state of a rank at a step; no two have anything in common."""
    chosen = torch.Generator().manual_seed(1000 * step + rank)
    content = torch.randint(0, 256, (ELEMENTS,), dtype=torch.uint8, generator=chosen)
    return {"rank": rank, "step": step, "content": content}


def same(state, rank, step):
    wanted = shard(rank, step)
    return state["rank"] == rank and state["step"] == step and torch.equal(state["content"], wanted["content"])


def say(**what):
    os.write(1, (json.dumps(what) + "\n").encode())  # one write: the lives share the pipe


class Heard(logging.Handler):
    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def eat(cgroup):
    """Take memory in small pieces until the kernel ends this process."""
    Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
    taken = []
    while True:
        taken.append(b"x" * (1 << 20))
        time.sleep(0.002)


def live(life):
    os.environ.update(life["environ"])
    heard = Heard()
    logging.getLogger("falcon_torch").addHandler(heard)
    rank = int(os.environ["RANK"])
    if int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("gloo")
    checkpoint = Checkpoint(life["folder"])
    step, state = checkpoint.load()
    whole = same(state, rank, step) if step else None
    del state
    for each in life["steps"]:
        checkpoint.save(shard(rank, each), each)
        checkpoint.wait()
    failures = checkpoint.counts.folder_failures
    say(pid=os.getpid(), rank=rank, step=step, same=whole, warned=heard.messages, folder_failures=failures)
    if life["cgroup"]:
        threading.Thread(target=eat, args=(life["cgroup"],), daemon=True).start()
    while life["forever"]:
        step = max([step, *life["steps"]]) + 1
        life["steps"] = [step]
        checkpoint.save(shard(rank, step), step)


if __name__ == "__main__":
    torch.set_num_threads(1)
    say(ready=True)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                live(json.loads(line))
            except Exception as error:  # noqa: BLE001 - the test shows it
                say(error=f"{type(error).__name__}: {error}")
            finally:
                os._exit(0)
