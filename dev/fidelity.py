"""Check, or write, what ``docs/fidelity.md`` says of its tests: ``python -m dev.fidelity [--write]``.

Each row has a state, which people write, and the column "shown", which follows from the tests and benchmarks that the
row cites. A short name of a test has a line in a table, with what runs the test. The counts follow from the rows.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from dev.cited_tests import CitationError, Function, citations, functions, resolve
from dev.limits import ROOT

PATH: Final = ROOT / "docs" / "fidelity.md"
STATES: Final = ("E2E", "DIFF+", "WIRED", "DIFF-", "CORE", "ABSENT", "STUDY")
DONE: Final = ("E2E", "DIFF+")
NOT_SHOWN: Final = ("ABSENT", "STUDY")  # there is nothing that a test could show
NOTHING: Final = "–"
CLUSTER, CLUSTER_BY_HAND = "cluster in CI", "cluster by hand"
PARTS, PARTS_BY_HAND, GPU = "parts in CI", "parts by hand", "GPU by hand"
MEASURED, SIMULATED = "measured by hand", "simulated"
SHOWN: Final = (CLUSTER, CLUSTER_BY_HAND, PARTS, PARTS_BY_HAND, GPU, MEASURED, SIMULATED, NOTHING)  # strongest first

_NO_SHORT_NAMES: Final = frozenset({"FP8", "FP16", "FP32", "BF16"})
_SHORT_NAME: Final = re.compile(r"\b[A-Z]{2}\d{1,2}\b")
_MEASURE: Final = r"tests\.e2e\.campaigns\.measure"  # with dots: it is no test, which a path below tests/ would be
_BENCHMARK: Final = re.compile(rf"\b(?:(?:benchmarks|evaluation)(?:[./]\w+)+|{_MEASURE}|falcon_sim)\b")
_SHORT_ROW: Final = re.compile(r"\| ([A-Z]{2}\d{1,2}) \| (test_\w+::test_\w+) \| ([^|]*) \|")
_STATE: Final = re.compile(r"\*\*(" + "|".join(map(re.escape, STATES)) + r")\*\*")
_CELLS: Final = 6  # of a row
_ROW: Final = re.compile(r"\| ([A-Z]\d+[a-z]?) \|")
_HEAD: Final = f"| | rows | {' | '.join(STATES)} |\n{'|---' * (len(STATES) + 2)}|\n"
_TABLE: Final = re.compile(re.escape(_HEAD) + r"(?:\|.*\n)+")
_SHOWN_HEAD: Final = f"| shown | {' | '.join(STATES)} |\n{'|---' * (len(STATES) + 1)}|\n"
_SHOWN_TABLE: Final = re.compile(re.escape(_SHOWN_HEAD) + r"(?:\|.*\n)+")


@dataclass
class Page:
    """The page as it should be, and what only a person can put right."""

    text: str
    faults: list[str] = field(default_factory=list)


def renewed(text: str, tests: Mapping[str, list[Function]], has_benchmark: Callable[[str], bool]) -> Page:
    """Return the page with each row's "shown", what runs each short name's test, and the counts.

    Args:
        text: the page.
        tests: the test functions of each file, by its path from ``tests/`` on.
        has_benchmark: whether the tree has this folder or file, such as ``benchmarks/scale``.
    """
    short_names: dict[str, list[Function]] = {}
    page = Page("")
    lines: list[str] = []
    for line in text.splitlines():
        if found := _SHORT_ROW.fullmatch(line):
            name, citation, _ = found.groups()
            short_names[name] = _resolved([f"e2e {citation}"], tests, page.faults, where=name)
            runs = short_names[name][0].runs if short_names[name] else NOTHING
            lines.append(f"| {name} | {citation} | {runs} |")
        elif found := _ROW.match(line):
            lines.append(_renewed_row(line, found.group(1), short_names, tests, has_benchmark, page.faults))
        else:
            lines.append(line)
    page.text = "".join(f"{line}\n" for line in lines)
    # The counts follow from the rows, so they come last.
    for table, head, counted in ((_TABLE, _HEAD, by_section), (_SHOWN_TABLE, _SHOWN_HEAD, by_shown)):
        fresh = (head + counted(page.text)).replace("\\", r"\\")
        page.text, tables = table.subn(fresh, page.text)
        if tables != 1:
            page.faults.append(f"{tables} tables of counts begin with {head.splitlines()[0]!r}, not one")
    return page


def _renewed_row(
    line: str,
    number: str,
    short_names: Mapping[str, list[Function]],
    tests: Mapping[str, list[Function]],
    has_benchmark: Callable[[str], bool],
    faults: list[str],
) -> str:
    """Return the row with its "shown"; add what is wrong with the row to ``faults``."""
    cells = line.strip("|").split(" | ")
    state = (
        _STATE.fullmatch(cells[3].strip()) if len(cells) == len(("#", "§", "what", "state", "shown", "where")) else None
    )
    if state is None:
        faults.append(
            f"{number}: want | # | § | what | **state** | shown | where |, with a state of {', '.join(STATES)}"
        )
        return line
    cited = _resolved(citations(cells[5]), tests, faults, where=number)
    for name in _SHORT_NAME.findall(cells[5]):
        if name in short_names:
            cited += short_names[name]
        elif name not in _NO_SHORT_NAMES:
            faults.append(f"{number}: {name} is no short name of the table")
    benchmarks = {name if "/" in name else name.replace(".", "/") for name in _BENCHMARK.findall(cells[5])}
    faults += [f"{number}: no {name}" for name in sorted(benchmarks) if not has_benchmark(name)]
    shown = NOTHING if state.group(1) in NOT_SHOWN else shown_by(cited, benchmarks)
    faults += _contradictions(number, state.group(1), shown)
    return "|" + " | ".join([*cells[:4], shown, cells[5]]) + "|"


def shown_by(cited: list[Function], benchmarks: set[str]) -> str:
    """Return the words for what a row cites: where its claim is shown, and whether CI does that.

    What a cluster shows by hand is followed by what CI, or else a person, shows of its parts.
    """
    words = {_word(test) for test in cited}
    words |= {SIMULATED if _is_simulation(name) else MEASURED for name in benchmarks}
    found = [word for word in SHOWN if word in words]
    return ", ".join(found[: 2 if CLUSTER_BY_HAND in found[:1] else 1]) or NOTHING


def _word(test: Function) -> str:
    if "gpu" in test.marks:
        return GPU
    if test.is_e2e:
        return CLUSTER_BY_HAND if test.marks else CLUSTER
    return PARTS_BY_HAND if test.marks else PARTS


def _is_simulation(benchmark: str) -> bool:
    return benchmark.startswith(("falcon_sim", "evaluation/simulator"))


def _contradictions(number: str, state: str, shown: str) -> Iterator[str]:
    if state == "E2E" and not shown.startswith("cluster"):
        yield f"{number}: E2E, but it cites no test of tests/e2e"
    elif state in DONE and shown == NOTHING:
        yield f"{number}: {state}, but it cites no test and no benchmark"


def _resolved(
    cited: list[str], tests: Mapping[str, list[Function]], faults: list[str], *, where: str
) -> list[Function]:
    found: list[Function] = []
    for citation in cited:
        try:
            found += resolve(citation, tests)
        except CitationError as error:
            faults.append(f"{where}: {error}")
    return found


def by_section(text: str) -> str:
    """Return the counts of the rows by state: a line for each section with rows, and one for all."""
    counts: dict[str, Counter[str]] = {}
    for section, state, _ in _rows(text):
        counts.setdefault(section, Counter())[state] += 1
    total = sum(counts.values(), Counter[str]())
    lines = [f"| {name} | {count.total()} | {_figures(count)} |\n" for name, count in counts.items()]
    return "".join([*lines, f"| **all** | {total.total()} | {_figures(total)} |\n"])


def by_shown(text: str) -> str:
    """Return the counts of the rows by state: a line for each first word of "shown"."""
    counts: dict[str, Counter[str]] = {}
    for _, state, shown in _rows(text):
        counts.setdefault(shown.partition(",")[0], Counter())[state] += 1
    return "".join(f"| {word} | {_figures(counts[word])} |\n" for word in SHOWN if word in counts)


def _rows(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield each row's section, state, and "shown"."""
    section = ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif _ROW.match(line) and (found := _STATE.search(line)):
            yield section, found.group(1), line[found.end() :].split(" | ")[1]


def _figures(count: Counter[str]) -> str:
    return " | ".join(str(count[state]) for state in STATES)


def _has_benchmark(name: str) -> bool:
    return name == "falcon_sim" or (ROOT / name).exists() or (ROOT / f"{name}.py").is_file()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dev.fidelity", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write them into the file")
    text = PATH.read_text(encoding="utf-8")
    tests: dict[str, list[Function]] = {}
    for test in functions(ROOT / "tests"):
        tests.setdefault(test.path, []).append(test)
    page = renewed(text, tests, _has_benchmark)
    is_written = parser.parse_args().write
    if is_written:
        PATH.write_text(page.text, encoding="utf-8")
    elif page.text != text:
        page.faults += _differences(text, page.text)
    for fault in page.faults:
        print(f"{PATH.relative_to(ROOT)}: {fault}")
    sys.exit(1 if page.faults else 0)


def _differences(old: str, new: str) -> Iterator[str]:
    """Yield what ``--write`` would change, line by line."""
    for before, after in zip(old.splitlines(), new.splitlines(), strict=False):
        if before != after:
            yield f"is {_short(before)} and should be {_short(after)}: python -m dev.fidelity --write"


def _short(line: str) -> str:
    return f"{line[:150]} …" if len(line) > 150 else line


if __name__ == "__main__":
    main()
