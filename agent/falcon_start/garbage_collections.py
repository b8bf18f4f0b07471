"""Add up for how long Python's garbage collector stops the process, in its notes (``notes``).

The collector ignores what is raised in its callbacks. So no Python runs in this one: in a Python function the
interpreter would run the handlers of signals that have come, and what they raise (SystemExit, KeyboardInterrupt, a
time-out) would never reach the program. Everything below is put together from functions that are written in C, none of
which looks for signals: a multiplication of long integers or a write to a file would. Once it is registered, no line of
this file runs any more.
"""

import gc
import sys
from _functools import partial
from _operator import sub
from itertools import accumulate, repeat
from time import perf_counter

from falcon_start.notes import COLLECTED

TYPE_CHECKING = False  # ``typing`` takes longer to import than all of this
if TYPE_CHECKING:
    from falcon_start.notes import Notes


def register(notes: "Notes") -> None:
    """Add up the collections of this process from now on; nothing where functions may be written in Python (PyPy)."""
    if sys.implementation.name != "cpython":
        return
    # Each ``next`` of ``starts`` keeps the time; each ``next`` of ``ends`` sets the total that has passed since.
    begun = memoryview(bytearray(8)).cast("d")
    starts = map(partial(begun.__setitem__, 0), iter(perf_counter, None))
    passed = map(sub, iter(perf_counter, None), map(begun.__getitem__, repeat(0)))
    ends = map(notes.setter(COLLECTED), accumulate(passed))
    # The collector calls ``getattr(phases, "start", info)``, and later ``getattr(phases, "stop", info)``.
    properties = {"start": property(partial(next, starts)), "stop": property(partial(next, ends))}
    gc.callbacks.append(partial(getattr, type("Phases", (), properties)()))
