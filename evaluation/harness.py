"""Run an evaluation: make the tables that are asked for, keep them in a page, and say which limits are missed.

Every evaluation takes the same options: without one, all tables are made at their rough size and printed; ``--check``
makes those that have limits and ends with exit code 1 where one is missed; ``--full`` makes all of them at their full
size and puts them into the evaluation's RESULTS.md, with the commit at which they were measured, and with what
``--note`` says of the machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.results import ROOT, provenance, put

_HEAD: Final = ("| limit of | measured | limit |", "|---|---|---|")


class Measure(msgspec.Struct, frozen=True):
    """Hold a figure and its limit. ``most``: the limit is the greatest value, else the least. ``form``: of both."""

    what: str
    value: float
    limit: float
    most: bool = False
    form: str = ".1%"

    @property
    def kept(self) -> bool:
        return self.value <= self.limit if self.most else self.value >= self.limit

    def row(self) -> str:
        """Return a row of the table of what falls short."""
        return f"| {self.what} | {self.value:{self.form}} | {'≤' if self.most else '≥'} {self.limit:{self.form}} |"


class Table(msgspec.Struct, frozen=True):
    """Hold a table that was made: Markdown, and the figures in it that have a limit."""

    text: str
    measures: Sequence[Measure] = ()


Maker = Callable[[argparse.Namespace], Table]


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Describe what is measured.

    ``name``: its folder in the package ``within``. ``code``: paths whose uncommitted changes a table names; none: the
    whole tree. ``tables``: how each is made from the command line's options, of which ``full`` says the size.
    ``checked``: those that have limits. ``kept``: those that have a place in RESULTS.md. ``options``: adds the
    evaluation's own options.
    """

    name: str
    about: str
    code: Sequence[str]
    tables: Mapping[str, Maker]
    checked: Sequence[str] = ()
    kept: Sequence[str] = ()
    options: Callable[[argparse.ArgumentParser], None] = lambda _parser: None
    within: str = "evaluation"

    @property
    def page(self) -> Path:
        return ROOT.joinpath(*self.within.split("."), self.name, "RESULTS.md")


def run(evaluation: Evaluation, arguments: Sequence[str] | None = None) -> int:
    """Make the tables that the command line asks for and return the process's exit code."""
    options = _parser(evaluation).parse_args(arguments)
    measures: list[Measure] = []
    for name in _names(evaluation, options):
        measured = provenance(*evaluation.code, note=f", {options.note}" if options.note else "")
        begun = time.monotonic()
        table = evaluation.tables[name](options)
        print(f"## {name}: {time.monotonic() - begun:.0f} s\n\n{measured}\n{table.text}\n", flush=True)
        measures += table.measures
        if options.full and name in evaluation.kept:
            put(evaluation.page, f"{measured}\n{table.text}", name)
    return finish(measures, fails=options.check or options.full)


def finish(measures: Sequence[Measure], *, fails: bool) -> int:
    """Print a table of the limits that are missed; return 1 where one is, if that ``fails`` the run."""
    short = [measure.row() for measure in measures if not measure.kept]
    if short:
        print("\n".join(["Falls short:", "", *_HEAD, *short]))
    return 1 if short and fails else 0


def _names(evaluation: Evaluation, options: argparse.Namespace) -> list[str]:
    if options.only:
        return list(options.only)
    return list(evaluation.checked if options.check else evaluation.tables)


def _parser(evaluation: Evaluation) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {evaluation.within}.{evaluation.name}",
        description=evaluation.about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    size = parser.add_mutually_exclusive_group()
    if evaluation.checked:
        size.add_argument("--check", action="store_true", help="what has limits; exit code 1 where one is missed")
    else:
        parser.set_defaults(check=False)
    size.add_argument("--full", action="store_true", help="at full size, and into RESULTS.md")
    parser.add_argument(
        "--only", type=_known(evaluation), metavar="TABLE,…", help=f"some tables: {', '.join(evaluation.tables)}"
    )
    parser.add_argument("--note", default="", help="for RESULTS.md: what else ran on the machine")
    evaluation.options(parser)
    return parser


def _known(evaluation: Evaluation) -> Callable[[str], list[str]]:
    """Return the reader of names of tables, separated by commas."""

    def names(text: str) -> list[str]:
        asked = text.split(",")
        unknown = sorted(set(asked) - set(evaluation.tables))
        if unknown:
            raise argparse.ArgumentTypeError(f"no table is called {', '.join(unknown)}: {', '.join(evaluation.tables)}")
        return asked

    return names
