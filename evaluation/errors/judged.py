"""Judge a labelled line on the way that its words take in the product."""

from __future__ import annotations

import msgspec

from evaluation.errors.lines import BENIGN, Labelled
from falcon_agent.node.problems import of_line
from falcon_agent.output.error_lines import LineJudge
from falcon_core.errors.classify import worst
from falcon_core.errors.judge import shipped_judge
from falcon_core.errors.table import ErrorClass, Source


class Judged(msgspec.Struct, frozen=True):
    """A labelled line, and what it was judged as."""

    line: Labelled
    known: ErrorClass | None
    alarms: bool  # a healthy rank's agent, or a healthy node's daemon, would report it

    @property
    def name(self) -> str:
        return self.known.name if self.known is not None else BENIGN


def judged(line: Labelled) -> Judged:
    """Judge a rank's words as its agent does after the end, a node's as its daemon does."""
    if line.source is Source.OUTPUT:
        known = shipped_judge().get(shipped_judge().last_words(line.text).error_class)
        return Judged(line, known, alarms(line.text))
    if line.source is Source.KERNEL:
        return _of_kernel(line)
    if line.source is Source.CONDITION:
        found = shipped_judge().report(line.text)
    else:
        found = shipped_judge().classifier.line(line.text, line.source)
    return Judged(line, found.error_class if found is not None else None, found is not None)


def alarms(output: str) -> bool:
    """Check whether an agent that reads the output of a living rank finds an error in it."""
    return bool(LineJudge(lambda: shipped_judge().classifier).read(output.encode(errors="replace")))


def _of_kernel(line: Labelled) -> Judged:
    classifier = shipped_judge().classifier
    texts = line.text.splitlines()
    of_node = [seen for text in texts if (seen := of_line(text, 0.0, shipped_judge())) is not None]
    if of_node:
        classes = [known for seen in of_node if (known := shipped_judge().get(seen.name)) is not None]
        return Judged(line, min(classes, key=lambda known: known.severity), True)
    # What a program may cause by itself is no problem of the node; it has a class all the same.
    found = worst(finding for text in texts if (finding := classifier.line(text, Source.KERNEL)) is not None)
    return Judged(line, found.error_class if found is not None else None, False)
