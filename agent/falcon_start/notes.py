"""Show the agent a few numbers of this process, in memory that both map: setting one makes no system call.

No descriptor stays open for it. A program may close descriptors that it has not opened (a daemon does), and the next
file that it opens gets the number: what was written to the descriptor would go into that file.
"""

import os
from _functools import partial

from falcon_start import borrowed
from falcon_start.stacks import created

TYPE_CHECKING = False  # ``typing`` takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

COLLECTED, UNCAUGHT, ENDED = range(3)  # places of the numbers; core/falcon_core/wire/launcher/notes.py
COUNT = 3
SUFFIX = ".notes"


def are_shown(folder: str) -> bool:
    """Check whether this process has notes already: an interpreter inside another one is no program of its own."""
    path = _path(folder)
    if not os.path.exists(path):
        return False
    with open("/proc/self/maps") as maps:  # the file may be of an earlier process with this id
        return path in maps.read()


def _path(folder: str) -> str:
    return os.path.join(os.path.realpath(folder), str(os.getpid()) + SUFFIX)


class Notes:
    """The numbers of this process, float64 [3] in the machine's byte order, all 0 at first.

    collected: seconds for which the garbage collector has stopped this process. ``uncaught``, ``ended``: 1 if so.
    """

    def __init__(self, folder: str) -> None:
        """Create the file ``folder``/<process id>.notes. Raises OSError."""
        file = created(_path(folder), os.O_RDWR)
        try:
            os.write(file, bytes(8 * COUNT))  # the memory is there from now on: no store can fail where it is full
            self._numbers = memoryview(borrowed("mmap", "mmap")(file, 8 * COUNT)).cast("d")
        finally:
            os.close(file)

    def put(self, place: int, number: float) -> None:
        """Set a number."""
        self._numbers[place] = number

    def setter(self, place: int) -> "Any":
        """Return a function that sets a number, and does nothing in processes that are forked from this one.

        It is written in C, and so is all that it calls: the interpreter runs no handler of a signal in it.
        Raises AttributeError where Python cannot tell a forked process (3.6).
        """
        found = partial(self._numbers.__setitem__, place)
        private = memoryview(bytearray(8 * COUNT)).cast("d")
        # novermin: its absence is said above
        os.register_at_fork(after_in_child=partial(found.__setstate__, (private.__setitem__, (place,), {}, None)))
        return found
