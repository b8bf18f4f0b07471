"""Read labelled lines: part one, from which rules were written, and part two, which no author of a rule has seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from evaluation.errors.steps import Step, step_named, step_of
from falcon_core.errors.table import Source, shipped
from falcon_core.model import Severity

ROOT: Final = Path(__file__).parents[2]
PART_ONE: Final = ROOT / "tests" / "data" / "errors"
PART_TWO: Final = Path(__file__).with_name("held_out")
TAUGHT: Final = Path(__file__).with_name("taught")
LINES: Final = "lines.jsonl"  # of part two
BENIGN: Final = "Benign"
_TABLES: Final = {  # of part one: who wrote the lines; None is not known
    "corpus.txt": None,
    "later.txt": None,
    "last.txt": None,
    "kernel.txt": Source.KERNEL,
    "faults.txt": Source.CONDITION,
    "catalogue_kernel.txt": Source.KERNEL,
    "catalogue_condition.txt": Source.CONDITION,
    "catalogue_output.txt": Source.OUTPUT,
}
_OBJECTS: Final = ("messages.jsonl", *(f"held_out_{number}.jsonl" for number in range(1, 7)))


class Labelled(msgspec.Struct, frozen=True):
    """A line, or the lines of one message, with what it should be judged as."""

    id: str
    source: Source | None  # None: of a file that does not say who wrote the lines
    text: str
    error_class: str  # BENIGN: none
    also: frozenset[str]  # other classes that are right as well
    step: Step

    @property
    def is_grave(self) -> bool:
        """Check whether its class has SEV1."""
        known = {each.name: each for each in shipped().classes}.get(self.error_class)
        return known is not None and known.severity is Severity.SEV1


class FormatError(ValueError):
    """A file of labelled lines that cannot be read; the message names the line and the field."""


def part_one() -> list[Labelled]:
    """Return the lines that rules were written from."""
    tables = [each for name, source in _TABLES.items() for each in _table(PART_ONE / name, source)]
    return tables + [each for name in _OBJECTS for each in _objects(PART_ONE / name)]


def taught() -> list[Labelled]:
    """Return the lines that the model of likeness learns from besides part one; rules were written from few."""
    return [each for path in sorted(TAUGHT.glob("*.jsonl")) for each in _objects(path)]


def part_two() -> list[Labelled]:
    """Return the lines that are kept back from the authors of rules; empty where the folder is absent."""
    path = PART_TWO / LINES
    return list(_objects(path)) if path.exists() else []


def _table(path: Path, source: Source | None) -> Iterator[Labelled]:
    """Read a file whose lines stand below ``== Class``."""
    name = BENIGN
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("== "):
            name = line.removeprefix("== ")
        elif line and not line.startswith("# "):
            yield Labelled(f"{path.stem}:{number}", source, line, name, frozenset(), step_of(_known(name)))


def _objects(path: Path) -> Iterator[Labelled]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.strip():
            yield _labelled(msgspec.json.decode(line), f"{path.name}:{number}")


def _labelled(raw: dict[str, Any], at: str) -> Labelled:
    name = _named(raw.get("class"))
    known = {each.name for each in shipped().classes} | {BENIGN}
    also = raw.get("also") or []
    also = [_named(each) for each in ([also] if isinstance(also, str) else also)]
    for each in (name, *also):
        if each not in known:
            raise FormatError(f"{at}: class {each!r} is not in the table; docs/errors.md lists the classes")
    text = raw["text"] if isinstance(raw["text"], str) else "\n".join(raw["text"])
    step = step_named(raw.get("step", ""), at) if raw.get("step") else step_of(_known(name))
    return Labelled(str(raw.get("id", at)), _source(str(raw.get("stream", "")), at), text, name, frozenset(also), step)


def _named(label: str | None) -> str:
    """Return the class of a label; a line that is no fault is labelled "none"."""
    return label if label and label != "none" else BENIGN


def _known(name: str) -> Any:
    return next((each for each in shipped().classes if each.name == name), None)


def _source(stream: str, at: str) -> Source:
    word = stream.lower()
    if word in ("output", "stdout", "stderr", "rank", "log"):
        return Source.OUTPUT
    if word in ("kernel", "dmesg", "kmsg"):
        return Source.KERNEL
    if word in ("condition", "event", "status", "kubelet", "node", "pod"):
        return Source.CONDITION
    raise FormatError(f"{at}: stream {stream!r} is unknown; use output, kernel or condition")
