"""Run tests of real processes, and judge each failed test by two more runs: dev.repeat PYTEST-ARGUMENTS

Real processes share the CPUs with all that runs at the same time, other tests among them, so one run of a thousand such
tests meets a delay that no limit of a single test allows for. A test that failed has to pass twice in a row while no
other test runs. A fault of the product fails again; what passes is named at the end, with the failure's output above,
since its author has to mend it. More failures than ``MOST`` are no chance: nothing is repeated then (ADR 138).
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

MOST = 3  # failed tests of a run that are repeated
RUNS = 2  # that a failed test has to pass, in a row
TESTS_FAILED = 1  # pytest's exit code where tests ran and some failed; other codes are errors of the run itself


def main(arguments: Sequence[str]) -> int:
    """Run pytest with the arguments and return its exit code; 0 as well where all failed tests pass their runs."""
    with tempfile.TemporaryDirectory() as cache:
        code = _pytest([*arguments, "-o", f"cache_dir={cache}"])
        if code != TESTS_FAILED:
            return code
        failed = failed_tests(Path(cache))
    if not 0 < len(failed) <= MOST:
        print(f"repeat: {len(failed)} tests failed; at most {MOST} are repeated", flush=True)
        return code
    print(f"repeat: {len(failed)} failed; each has to pass {RUNS} times while no other test runs", flush=True)
    for _ in range(RUNS):
        # Each test has a process of its own, so that none finds what another one has left in this one's memory.
        for test in failed:
            if not _passes([*_limits(arguments), test, "-p", "no:cacheprovider"]):
                print(f"repeat: {test} did not pass alone either", flush=True)
                return TESTS_FAILED
    for test in failed:
        print(f"repeat: failed once, passed {RUNS} times alone: {test} (mend it: the first failure is shown above)")
    return 0


def failed_tests(cache: Path) -> list[str]:
    """Return the ids of the tests that pytest's cache in this folder names as failed, sorted."""
    found: dict[str, bool] = json.loads((cache / "v/cache/lastfailed").read_text(encoding="utf-8"))
    return sorted(found)


def _limits(arguments: Sequence[str]) -> list[str]:
    """Return the arguments that bound a single test's time."""
    return [word for pair in itertools.pairwise(arguments) if pair[0] == "--timeout" for word in pair]


def _passes(arguments: Sequence[str]) -> bool:
    """Check whether pytest with the arguments runs a test and it passes; a skipped test does not."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        if _pytest([*arguments, f"--junitxml={report}"]) != 0:
            return False
        (suite,) = ElementTree.parse(report).getroot()
        return int(suite.attrib["tests"]) > 0 and int(suite.attrib["skipped"]) == 0


def _pytest(arguments: Sequence[str]) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
