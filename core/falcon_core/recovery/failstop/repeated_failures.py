"""Find out that the same failure comes again and again, however long it takes to come back.

The budget of restarts forgets after its window, so that a job which fails after each resume 22 minutes long was
restarted for ever. A failure is the same if its class or exception, its place and its words are the same, apart from
numbers. It is the program's or the data's, and no restart mends it, if it has come again after ``MOST_RESTARTS``
restarts

- at the same iteration after a resume, or
- on several nodes, where the program itself raised the error.

A hang, a kill for memory and an end without words count by their iteration alone: only that shows that they are the
same failure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from falcon_core.errors.table import Domain, ErrorClass
from falcon_core.model import Cause
from falcon_core.recovery.failstop.faults import EARLY_END
from falcon_core.recovery.model.failure import Fault, Repeat
from falcon_core.text import clip

MOST_RESTARTS: Final = 3  # after the same failure
KEPT_SECONDS: Final = 86_400.0  # since the newest of these failures
MOST_KINDS: Final = 4  # of failures that are remembered, the newest
MOST_NODES: Final = 3  # that are remembered of a failure
MOST_CHARACTERS: Final = 200
# Causes that show no more than the iteration at which they came.
_AT_ITERATION: Final = frozenset({Cause.HANG, Cause.OUT_OF_MEMORY, Cause.PROCESS_FAILED, Cause.PROCESS_CRASHED})
_NUMBER: Final = re.compile(r"0x[0-9a-f]+|\d+", re.IGNORECASE)
replace = msgspec.structs.replace


def remembered(
    repeats: Sequence[Repeat], fault: Fault, kind: ErrorClass | None, *, iterations: int, now: float
) -> list[Repeat]:
    """Return the failures that are remembered, with this one. ``iterations``: done in its generation."""
    kept = [repeat for repeat in repeats if now - repeat.at < KEPT_SECONDS]
    says_why = _says_why(fault, kind)
    if not says_why and not (iterations and _may_depend_on_iteration(fault, kind)):
        return kept
    words = _words(fault)
    known = next((repeat for repeat in kept if repeat.words == words), None)
    others = [repeat for repeat in kept if repeat is not known]
    if known is None:
        known = Repeat(words=words, at=now, iterations=iterations, of_program=says_why and _is_of_program(kind))
    else:
        # A dying rank's report may lack its last iteration. Failures before the first one are all at 0, which shows
        # nothing.
        same = abs(known.iterations - iterations) <= 1 and iterations > 0
        known = replace(
            known,
            at=now,
            times=known.times + 1,
            same_iteration=known.same_iteration + 1 if same else 1,
            iterations=iterations,
        )
    nodes = sorted({*known.nodes, fault.node} - {""})[:MOST_NODES]
    return [*others, replace(known, nodes=nodes)][-MOST_KINDS:]


def repeated(repeats: Sequence[Repeat], fault: Fault) -> Repeat | None:
    """Return what is remembered of the fault if it has come so often that no restart mends it; else None."""
    known = next((repeat for repeat in repeats if repeat.words == _words(fault)), None)
    if known is None or known.times <= MOST_RESTARTS:
        return None
    # The first failure may lie further behind the checkpoint than the later ones do.
    at_one_iteration = known.same_iteration >= MOST_RESTARTS
    everywhere = known.of_program and len(known.nodes) > 1
    return known if at_one_iteration or everywhere else None


def _says_why(fault: Fault, kind: ErrorClass | None) -> bool:
    """Check whether a failure says what happened; an end for a reason outside the job says nothing of the program."""
    if fault.rank is None and not fault.is_of_all_ranks:
        return False
    if fault.cause not in (Cause.PROCESS_FAILED, Cause.PROCESS_CRASHED) or fault.consequence or fault.hearsay:
        return False
    outside = kind is not None and (kind.of_hardware or kind.transient)
    # A rank that runs out of data leaves no words, and the others' words say nothing of it.
    return not outside and (":" in fault.text or fault.error == EARLY_END)


def _may_depend_on_iteration(fault: Fault, kind: ErrorClass | None) -> bool:
    """Check whether a failure that does not say why may be the program's or its data's at one iteration.

    A kill counts only where something is known of its reason: people and clusters kill processes, too.
    """
    if fault.consequence or fault.hearsay or (kind is not None and (kind.transient or kind.costs_node)):
        return False
    if fault.cause is Cause.PROCESS_KILLED:
        return kind is not None
    return fault.cause in _AT_ITERATION


def _is_of_program(kind: ErrorClass | None) -> bool:
    return kind is None or kind.domain is Domain.PROGRAM


def _words(fault: Fault) -> str:
    """Return class and words without numbers, which differ from rank to rank and from start to start."""
    # A hang is described by who waits, which depends on chance.
    said = fault.cause if fault.cause is Cause.HANG else f"{fault.error_class or fault.error}: {fault.text}"
    return clip(_NUMBER.sub("#", said), MOST_CHARACTERS)
