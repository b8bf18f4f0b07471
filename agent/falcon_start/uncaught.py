"""Note that the program has ended: with an uncaught exception, before Python prints it; or in any other way.

From then on the process only cleans up. That takes a second with PyTorch, and for ever where a thread waits for peers.
The printed traceback alone does not say so: programs catch exceptions, print them, and go on. Nor does ``sys.exit``,
which prints nothing: an interpreter that tears libraries down answers no signal any more.
"""

import atexit
import os
import sys
from _thread import get_ident  # ``threading`` takes longer to import than all of this

from falcon_start.notes import ENDED, UNCAUGHT

TYPE_CHECKING = False  # ``typing`` takes longer to import than all of this
if TYPE_CHECKING:
    from falcon_start.notes import Notes

_OF_A_PROGRAM = ("<module>", "_run_module_as_main")  # the outermost function of a thread that still runs a program


def register(notes: "Notes") -> None:
    """Let the hook for uncaught exceptions note each (``notes``), and then do as before. Note the program's end, too.

    The end is noted when the program is over, after whatever it has to do at its exit.

    ``sys.__excepthook__`` becomes the same hook: most programs with a hook of their own call it, and libraries that
    compare the two find them equal, as they are in any fresh interpreter.
    """
    process, thread, before = os.getpid(), get_ident(), sys.excepthook

    def hook(kind, value, trace):  # type: ignore[no-untyped-def]
        # Nothing is caught here: what the handler of a signal raises goes on to the interpreter, as from any hook.
        try:
            # An error in a process forked from this one, or in a thread, ends no rank.
            if os.getpid() == process and get_ident() == thread and _has_left(value):
                notes.put(UNCAUGHT, 1.0)
        finally:
            before(kind, value, trace)

    if before is sys.__excepthook__:
        sys.__excepthook__ = hook
    sys.excepthook = hook
    # Nothing of the program's is registered yet, and the first that is registered runs last. Python ignores what is
    # raised there, so that it must be a function written in C.
    atexit.register(notes.setter(ENDED), 1.0)


def _has_left(value):  # type: (BaseException) -> bool
    """Check whether the interpreter has called the hook because the program is over, and no program by itself.

    The interpreter sets ``sys.last_value`` before, and calls the hook when no function of the program is left.
    """
    if getattr(sys, "last_value", None) is not value or sys.flags.inspect:
        return False
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name not in _OF_A_PROGRAM
