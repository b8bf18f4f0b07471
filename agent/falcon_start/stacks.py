"""Write the Python stacks of all threads to a file whenever the launcher sends a signal, at no cost until then.

``faulthandler`` writes them from the signal's handler, without the interpreter's lock: a rank that is inside a
collective, or waits for a lock, answers like any other. Threads that wait are not woken for longer than a system call.

A second signal asks for the stack of the main thread alone, of a rank that runs. That thread takes the signal itself
and writes its own stack: the stacks of other threads change while they run, and no other thread may read them then.
"""

import faulthandler
import os

# The enumerations of ``signal`` take longer to import than all of this.
from _signal import SIG_IGN, signal  # type: ignore[import-not-found]

# shim/src/launch/process/stacks.h; real-time signals that no library is known to use
SIGNAL, SAMPLE_SIGNAL = 57, 58


def register(folder: str) -> None:
    """Let ``SIGNAL`` append the stacks to the file ``folder``/<process id>, which the agent may read.

    ``SAMPLE_SIGNAL`` appends to ``folder``/<process id>.sample. Both stay open for as long as the interpreter lives,
    unless the program closes them: the launcher sends the signal only where the process has its file open.

    The interpreter takes the handlers back at its end. A signal that the launcher sends at that moment is ignored:
    without that, it would end the process.
    """
    path = os.path.join(folder, str(os.getpid()))
    file = created(path, os.O_WRONLY | os.O_APPEND)
    sample = created(path + ".sample", os.O_WRONLY | os.O_APPEND)
    for number in (SIGNAL, SAMPLE_SIGNAL):
        signal(number, SIG_IGN)  # what faulthandler finds, it leaves behind
    faulthandler.register(SIGNAL, file=file, all_threads=True, chain=False)
    faulthandler.register(SAMPLE_SIGNAL, file=sample, all_threads=False, chain=False)


def created(path: str, flags: int) -> int:
    """Create a file that the agent may read; return its descriptor. ``flags``: at least the way it is opened."""
    file = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    os.fchmod(file, 0o644)  # whatever the umask: the agent is another user
    return file
