"""Write the Python stacks of all threads to a file whenever the launcher sends a signal, at no cost until then.

``faulthandler`` writes them from the signal's handler, without the interpreter's lock: a rank that is inside a
collective, or waits for a lock, answers like any other. Threads that wait are not woken for longer than a system call.
"""

import faulthandler
import os  # and no ``signal``: its enumerations take longer to import than all of this

SIGNAL = 57  # shim/src/launch/stacks.h; a real-time signal that no library is known to use


def register(folder: str) -> int:
    """Let ``SIGNAL`` append the stacks to the file ``folder``/<process id>, which the agent may read.

    Return its descriptor, which stays open for as long as the interpreter lives.
    """
    path = os.path.join(folder, str(os.getpid()))
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    os.fchmod(file, 0o644)  # whatever the umask: the agent is another user
    faulthandler.register(SIGNAL, file=file, all_threads=True, chain=False)
    return file
