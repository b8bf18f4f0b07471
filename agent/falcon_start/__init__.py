"""Prepare a rank's interpreter at its start, when ``falcon-launch`` asks for it: the standard library alone.

Runs in the user's image: Python 3.6 and later. What of it goes on in the user's program is listed in docs/shim.md.
"""

import sys

TYPE_CHECKING = False  # ``typing`` takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any


def borrowed(module: str, name: str) -> "Any":
    """Return an object of a module of the standard library, and leave the module's name to the program.

    A program that has a module of that name next to its script finds its own, as it does without Falcon.
    """
    known = module in sys.modules
    found = getattr(__import__(module), name)
    if not known:
        del sys.modules[module]
    return found
