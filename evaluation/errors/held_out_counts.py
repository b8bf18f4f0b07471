"""Count the held-out lines and cases, and put the counts into the page that describes them.

    python -m evaluation.errors.held_out_counts          # print the tables
    python -m evaluation.errors.held_out_counts --write  # write them into held_out/README.md

Neither judges a line, and neither prints a line's text.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from evaluation.errors.cases import HELD_OUT as CASES
from evaluation.errors.lines import LINES, PART_TWO, part_one

PAGE: Final = PART_TWO / "README.md"
STEPS: Final = ("leave the node", "restart the processes", "retry in place", "fail the job at once", "nothing")
FEWEST: Final = 3  # lines of a project with a row of its own
NEAR: Final = 0.8  # share of common words from which two texts count as near

_HOST: Final = re.compile(r"\b(?:[a-z]+-)*(?:hgx|dgx|gpu|npu|node|host|trainer|worker|n)[-_]?\d+\b")
_NUMBER: Final = re.compile(r"0x[0-9a-f]+|[0-9a-f]*\d[0-9a-f]*")
_OTHER: Final = re.compile(r"[^a-z#]+")
_WORD: Final = re.compile(r"[a-z_]{2,}|#")


def records(name: str) -> list[dict[str, Any]]:
    """Return the records of a held-out file, as they stand there."""
    return [msgspec.json.decode(line) for line in (PART_TWO / name).read_bytes().splitlines() if line.strip()]


def shape(text: str) -> str:
    """Return a text without its hosts, numbers and marks, so that two texts of one message are equal."""
    masked = _NUMBER.sub("#", _HOST.sub("host", text.lower()))
    return _OTHER.sub(" ", masked).strip()


def project(record: Mapping[str, Any]) -> str:
    """Return the project that a record names first in its source."""
    return str(record["source"]).partition(":")[0]


def counts() -> str:
    """Return the tables of the counts, in Markdown."""
    lines, cases = records(LINES), records(CASES.name)
    steps, of_cases = Counter(each["step"] for each in lines), Counter(each["step"] for each in cases)
    rows = [f"| {step} | {steps[step]} | {of_cases[step]} |" for step in STEPS]
    unnamed = sum(each["cause"]["rank"] is None for each in cases)
    starts = sum(each.get("iterations") == 0 for each in cases)
    return "\n".join(
        [
            "| step | lines | cases |",
            "|---|---|---|",
            *rows,
            f"| **all** | **{len(lines)}** | **{len(cases)}** |",
            "",
            f"No single rank is at fault in {unnamed} cases; {starts} fail at their start.",
            "",
            _table("stream", Counter(each["stream"] for each in lines)),
            "",
            _table("class", Counter(each["class"] for each in lines)),
            "",
            _table("project", Counter(map(project, lines)), FEWEST),
        ]
    )


def _table(head: str, counter: Counter[str], fewest: int = 1) -> str:
    """Return one row for each name, the most frequent first; names with fewer lines share the last row."""
    named = sorted(counter.items(), key=lambda each: (-each[1], each[0].lower()))
    rows = [f"| {name} | {number} |" for name, number in named if number >= fewest]
    rare = [number for _, number in named if number < fewest]
    if rare:
        rows.append(f"| {len(rare)} others | {sum(rare)} |")
    return "\n".join([f"| {head} | lines |", "|---|---|", *rows])


def near(lines: Sequence[str], known: Iterable[str]) -> int:
    """Count the lines that share four fifths of their words with a known text."""
    sets = [_words(text) for text in known]
    return sum(any(_alike(words, other) for other in sets) for words in map(_words, lines))


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(_NUMBER.sub("#", text.lower())))


def _alike(words: frozenset[str], other: frozenset[str]) -> bool:
    return len(words & other) >= NEAR * len(words | other)


def nearness() -> str:
    """Return the sentence that says how many lines are near to a line of part one."""
    texts = [str(each["text"]) for each in records(LINES)]
    known = [each.text for each in part_one()]
    return (
        f"When this was written, {near(texts, known)} of the {len(texts)} lines shared four fifths of their words\n"
        f"with one of {len(known)} lines of part one. The others are the harder share."
    )


def replaced(page: str, mark: str, text: str) -> str:
    """Return the page with a text between its marks. Raises ValueError where the page lacks them."""
    begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    if begin not in page or end not in page:
        raise ValueError(f"{PAGE.name} has no place for {mark!r}: add {begin} and {end}")
    head, _, rest = page.partition(begin)
    return f"{head}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}"


def main() -> None:
    """Print the counts, or write them into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the counts into held_out/README.md")
    if parser.parse_args().write:
        page = replaced(PAGE.read_text(), "counts", counts())
        PAGE.write_text(replaced(page, "nearness", nearness()))
    else:
        print(counts(), nearness(), sep="\n\n")


if __name__ == "__main__":
    main()
