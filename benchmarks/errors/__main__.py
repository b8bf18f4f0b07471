"""How many lines a second are judged, and how many lines of healthy logs are taken for errors.

    make venv && python -m benchmarks.errors            # the table
    make venv && python -m benchmarks.errors --write    # writes it to RESULTS.md
    make venv && python -m benchmarks.errors --check    # exit code 1 where a limit is not kept

A rate is lines for each second of CPU time, the median of seven rounds after one. The ratio is to splitting the same
text into lines and counting their letters in Python, in the same run.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.errors.healthy import lines
from benchmarks.results import provenance, put
from falcon_core.errors.classify import Classifier
from falcon_core.errors.table import shipped

RESULTS: Final = Path(__file__).with_name("RESULTS.md")
HEALTHY: Final = 200_000  # lines
ERRORS: Final = 20_000
HOSTILE: Final = 2_000
ROUNDS: Final = 7
LEAST_PER_SECOND: Final = 200_000
MOST_FALSE_PER_10_000: Final = 1.0
_KNOWN_ERRORS: Final = (
    "[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered",
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:525] Connection closed by peer [10.0.0.3]:27189",
    "KeyError: 'input_ids'",
    "something that failed without an error of its own: retry",
)


def rate(judge: Callable[[bytes], object], text: bytes, count: int, rounds: int = ROUNDS) -> float:
    """Return the median of lines for each second of CPU time."""
    judge(text)
    taken = []
    for _ in range(rounds):
        began = time.process_time()
        judge(text)
        taken.append(time.process_time() - began)
    return count / statistics.median(taken)


def count_letters(text: bytes) -> int:
    return sum(len(line) for line in text.split(b"\n"))


def hostile(count: int) -> bytes:
    """Return lines of words out of the rules themselves, so that every look is a new one."""
    words = re.findall(r"[a-z]{3,}", " ".join(pattern for rule in shipped().rules for pattern in rule.patterns))
    chance = random.Random(1)
    return "\n".join(" ".join(chance.choices(words, k=15)) for _ in range(count)).encode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the limits")
    parser.add_argument("--write", action="store_true", help="write RESULTS.md")
    asked = parser.parse_args()
    began = time.process_time()
    classifier = Classifier(shipped())
    build_seconds = time.process_time() - began
    text = "\n".join(lines(HEALTHY)).encode()
    errors = "\n".join(_KNOWN_ERRORS[number % 4] for number in range(ERRORS)).encode()
    unknown = hostile(HOSTILE)
    began = time.process_time()
    classifier.chunk(unknown)
    first = HOSTILE / (time.process_time() - began)
    false = classifier.chunk(text)
    healthy = rate(classifier.chunk, text, HEALTHY)
    flood = rate(lambda data: classifier.chunk(data, most=ERRORS), errors, ERRORS)
    per_10_000 = len(false) / HEALTHY * 10_000
    rows = [
        ("healthy lines", f"{healthy:,.0f} lines/s, {healthy * len(text) / HEALTHY / 1e6:.0f} MB/s"),
        ("to splitting and counting alone", f"{rate(count_letters, text, HEALTHY) / healthy:.1f} ×"),
        ("lines of errors alone", f"{flood:,.0f} lines/s"),
        ("hostile lines, never seen", f"{first:,.0f} lines/s"),
        ("table and automaton, once", f"{build_seconds * 1000:.0f} ms"),
        (f"false alarms in {HEALTHY:,} healthy lines", f"{len(false)} ({per_10_000:.2f} in 10 000)"),
    ]
    table = "| what | figure |\n|---|---|\n" + "".join(f"| {what} | {figure} |\n" for what, figure in rows)
    print(table)
    if asked.write:
        put(RESULTS, f"{table}\n{provenance('core/falcon_core/errors', 'benchmarks/errors')}")
    for finding in false[:10]:
        print(f"false alarm: {finding.name} by rule {finding.rule}: {finding.matched}")
    kept = healthy >= LEAST_PER_SECOND and per_10_000 <= MOST_FALSE_PER_10_000
    if asked.check and not kept:
        print(f"limits: {LEAST_PER_SECOND:,} lines/s and {MOST_FALSE_PER_10_000} false alarms in 10 000 lines")
    return 0 if kept or not asked.check else 1


if __name__ == "__main__":
    sys.exit(main())
