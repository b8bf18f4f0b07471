"""Set Python's collector of cyclic garbage for a process with millions of objects and hardly any cycles.

Reports, pods and plans are freed by their reference counts. The collector's search is what they cost: with Python's own
thresholds, 9 600 agents took 18 % of the operator's time for 868 objects that were found in 20 full searches, each of
which held up every thread for a second.
"""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 50_000  # made and not yet freed, before they are searched
MIDDLE_SEARCHES = 20  # of the young, before a search of those that survived
FULL_SEARCHES = 50  # of the middle, before a search of everything


def settle() -> None:
    """Set the thresholds, and leave out of every search what the process's start has made, which stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, MIDDLE_SEARCHES, FULL_SEARCHES)
