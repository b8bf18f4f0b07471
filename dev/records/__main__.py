"""Show that a change keeps behaviour: ``python -m dev.records write FOLDER``, and ``compare FOLDER FOLDER``.

``write`` runs each scenario of the simulator with each seed, and all stories of the operator; each gets a file.
One seed of all scenarios takes seven minutes of one core, half of them ``speed1024``: ``--only`` chooses scenarios.
``compare`` names the files that differ and their first different line, and ends with 1 if there are any.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import product, zip_longest
from pathlib import Path

from dev.records.simulations import record, scenarios

ROOT = Path(__file__).resolve().parents[2]
TOKEN = re.compile(r"\b[0-9a-f]{32}\b")  # of a probe: drawn at random
STORIES = ("tests/unit/operator", "tests/stories")


def write(folder: Path, seeds: int, only: list[str]) -> int:
    """Write the records of this checkout; return the exit code of the stories' tests."""
    folder.mkdir(parents=True)
    chosen = [path for path in scenarios() if not only or path.stem in only]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for future in [pool.submit(record, path, seed, folder) for path, seed in product(chosen, range(seeds))]:
            future.result()
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(os.cpu_count()), "-p", "dev.records.stories"]
    stories = folder / "stories"
    return subprocess.run([*command, "--records", str(stories.resolve()), *STORIES], cwd=ROOT).returncode


def compare(before: Path, after: Path) -> int:
    """Print what differs between two folders of records; return 1 if anything does."""
    names = sorted({str(path.relative_to(side)) for side in (before, after) for path in side.rglob("*.txt")})
    differing = [found for name in names if (found := _difference(name, before / name, after / name))]
    print(*differing, f"{len(names)} records, {len(differing)} differ", sep="\n")
    return 1 if differing or not names else 0


def _difference(name: str, before: Path, after: Path) -> str:
    """Name the first line that differs; empty if the files are equal."""
    for side, path in (("before", before), ("after", after)):
        if not path.exists():
            return f"{name}: there is no record {side} the change"
    lines = zip_longest(*(TOKEN.sub("TOKEN", path.read_text()).splitlines() for path in (before, after)))
    for number, (old, new) in enumerate(lines, start=1):
        if old != new:
            return f"{name}:{number}\n  - {str(old)[:300]}\n  + {str(new)[:300]}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    writing.add_argument("folder", type=Path)
    writing.add_argument("--seeds", type=int, default=20)
    writing.add_argument("--only", nargs="*", default=[], metavar="SCENARIO")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    options = parser.parse_args()
    if options.command == "write":
        return write(options.folder, options.seeds, options.only)
    return compare(options.before, options.after)


if __name__ == "__main__":
    sys.exit(main())
