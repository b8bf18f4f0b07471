"""Add up for how long Python's garbage collector stops the process, in a file that the agent may read.

The file holds the total [ns] twice, each in ``DIGITS`` digits: a reader that meets a write halfway finds two numbers.
It is written when ``LEAST_NS`` have come together, so that the many collections of young objects cost no system call.
"""

import gc
import os
import time

from falcon_start.stacks import created

DIGITS = 20
LEAST_NS = 10_000_000


def register(folder):  # type: (str) -> None
    """Add up the collections of this process from now on, in the file ``folder``/<process id>.collected."""
    process = os.getpid()
    file = created(os.path.join(folder, str(process) + ".collected"))
    begun = total = written = 0

    def write():  # type: () -> None
        os.pwrite(file, b"%0*d %0*d\n" % (DIGITS, total, DIGITS, total), 0)

    def collect(phase, info):  # type: (str, object) -> None
        nonlocal begun, total, written
        if phase == "start":
            begun = time.perf_counter_ns()
            return
        if begun:
            total += time.perf_counter_ns() - begun
            begun = 0
        if total - written >= LEAST_NS:
            written = total
            try:
                if os.getpid() == process:  # a process forked from this one has the same file
                    write()
            except OSError:  # training goes on without the figure
                pass

    write()
    gc.callbacks.append(collect)
