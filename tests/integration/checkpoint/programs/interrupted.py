"""Alarms while checkpoints are loaded, and while Falcon's own files are read: interrupted.py FOLDER

Each alarm raises TimeoutError, as a program's time limit does. Prints how many reached the program, and which steps
were loaded where none came: between alarms, and after all of them.
"""

import signal
import sys

import torch

import falcon_torch
from falcon_torch.agent_file import AgentFile
from falcon_torch.guard import Guard

ALARMS = 30
torch.set_num_threads(1)
raised = reached = 0
loaded = set()


def handler(number, frame):
    global raised
    raised += 1
    raise TimeoutError("the program's own")


class Slow:
    """A value that takes a while to be read, in Python."""

    def __setstate__(self, state):
        for _ in range(2000):
            pass

    def __getstate__(self):
        return 1


checkpoint = falcon_torch.Checkpoint(sys.argv[1])
for step in (1, 2):
    checkpoint.save({"weights": torch.zeros(1 << 18), "slow": [Slow() for _ in range(50)]}, step)
checkpoint.wait()
signal.signal(signal.SIGALRM, handler)
for turn in range(ALARMS):
    before = raised
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0001 * (turn + 1))
        while raised == before:
            loaded.add(checkpoint.load()[0])
    except TimeoutError:
        reached += 1
loaded.add(checkpoint.load()[0])  # on a busy machine no load ends before its alarm
print("loads", raised == reached, sorted(loaded))


class Refusing:
    """A store of which every request is refused after a while, in the middle of which the handler runs."""

    def add(self, key, count):
        signal.raise_signal(signal.SIGUSR1)
        raise RuntimeError("gone")


def ending(number, frame):
    raise RuntimeError("preempted")


signal.signal(signal.SIGUSR1, ending)
guard = Guard.__new__(Guard)
guard._store = Refusing()
guard._ended = False
guard._since = 0.0
try:
    print("guard", guard._decision((1, 1), 0.0, may_leave_out=True))
except RuntimeError as error:
    print("guard", error)
raised = reached = 0
file = AgentFile("/absent/file")
for _ in range(ALARMS):
    before = raised
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0002)
        while raised == before:
            file.content()
    except TimeoutError:
        reached += 1
print("file", raised == reached)
