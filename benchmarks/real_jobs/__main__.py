"""Jobs as people run them: who is blamed, who is taken, and after how long, beside the code of commit a9e84fb.

    make venv && python -m benchmarks.real_jobs --check    # a subset; exit code 1 where a limit is missed
    make venv && python -m benchmarks.real_jobs --full     # 20 seeds at 16 ranks, 3 at 128, both noise levels
    make venv && python -m benchmarks.real_jobs --pattern "two at once" --seeds 3 --alone [--world 128] [--level high]

``--write`` puts the tables into RESULTS.md. Both codes play the same scenes, each in processes of its own. The scenes
know nothing of either: ring records → a ``RankChain`` for each rank → reports → ``recovery.machine`` with its default
policy, a replacement's price of 60 s and two spares → actions, which change the nodes. What counts as an incident is a
slowdown that the user is shown: a rank or a link is named, or it lasts without a name (``recovery.habits``). The
code of a9e84fb showed each onset at once.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from benchmarks.real_jobs.outcome import Case, Outcome
from benchmarks.real_jobs.patterns import CHECKED, PATTERNS
from benchmarks.real_jobs.scene import Level
from benchmarks.real_jobs.verdict import falls_short, pattern_table, pooled_table
from benchmarks.results import provenance, put

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = Path(__file__).with_name("RESULTS.md")
CACHE: Final = Path(os.environ.get("FALCON_CACHE", Path.home() / ".cache" / "falcon"))
BASELINE: Final = "a9e84fb"
CODE: Final = ("core/falcon_core", "core/falcon_sim", "agent/falcon_agent", "benchmarks/real_jobs/*.py")
LEVELS: Final[tuple[Level, ...]] = ("low", "high")
SEEDS: Final = {16: 20, 128: 3}
Name = Literal["present", "baseline"]


def packages() -> Path:
    """Return a folder with core and agent of the baseline, from the repository's history, and nothing else of it."""
    folder = CACHE / f"chain-{BASELINE}"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as made:
            paths = ("core/falcon_core", "agent/falcon_agent")
            command = ["git", "archive", BASELINE, *paths]
            archive = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
            subprocess.run(["tar", "-x", "--strip-components=1", "-C", made], input=archive.stdout, check=True)
            Path(made).rename(folder)
            Path(made).mkdir()
    return folder


class Player:
    """A process that plays cases with one code."""

    def __init__(self, name: Name) -> None:
        path = [str(ROOT)] if name == "present" else [str(packages()), str(ROOT)]
        if name == "present":
            path = [str(ROOT / "core"), str(ROOT / "agent"), *path]
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.real_jobs.{name}"],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path),
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def play(self, case: Case) -> Outcome:
        """Play a case. Raises RuntimeError where the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(case) + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"no outcome of {case}")
        return msgspec.json.decode(line, type=Outcome)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Both(msgspec.Struct, frozen=True):
    """What came of a case with both codes."""

    present: Outcome
    baseline: Outcome | None  # None: not asked for


class Show:
    """Plays cases with both codes in so many lanes, and keeps outcomes in a file if it is given one."""

    def __init__(self, asked: Sequence[Case], kept: Path | None, *, alone: bool) -> None:
        self._kept, self._alone = kept, alone
        self._lock = threading.Lock()
        self.found: dict[Case, Both] = {}
        if kept is not None and kept.exists():
            known = (msgspec.json.decode(line, type=Both) for line in kept.read_bytes().splitlines())
            self.found = {
                both.present.case: both
                for both in known
                if both.present.case in set(asked) and (alone or both.baseline is not None)
            }
        self._asked = asked
        self._left = iter([case for case in asked if case not in self.found])

    def play(self, lanes: int) -> list[Both]:
        """Play what is left. Returns the outcomes in the order of the cases; raises RuntimeError where one failed."""
        threads = [threading.Thread(target=self._lane) for _ in range(lanes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(self.found) < len(self._asked):
            raise RuntimeError(f"{len(self._asked) - len(self.found)} cases have no outcome")
        return [self.found[case] for case in self._asked]

    def _lane(self) -> None:
        present = Player("present")
        baseline = None if self._alone else Player("baseline")
        while (case := self._next()) is not None:
            both = Both(present.play(case), None if baseline is None else baseline.play(case))
            if both.baseline is not None and both.present.records_crc != both.baseline.records_crc:
                raise RuntimeError(f"{case}: the codes got different records")
            self._keep(both)
        present.close()
        if baseline is not None:
            baseline.close()

    def _next(self) -> Case | None:
        with self._lock:
            return next(self._left, None)

    def _keep(self, both: Both) -> None:
        case, spent = both.present.case, f"{both.present.seconds:.0f} s"
        with self._lock:
            self.found[case] = both
            print(
                f"{len(self.found)} of {len(self._asked)}: {case.pattern}, {case.world} ranks, {spent}", file=sys.stderr
            )
            if self._kept is not None:
                with self._kept.open("ab") as file:
                    file.write(msgspec.json.encode(both) + b"\n")


def cases(options: argparse.Namespace) -> list[Case]:
    """Return the cases that the command line asks for."""
    if options.full:
        return [
            Case(pattern=name, world=world, level=level, seed=seed)
            for world, seeds in SEEDS.items()
            for seed, name, level in itertools.product(range(seeds), PATTERNS, LEVELS)
        ]
    names = options.pattern or CHECKED
    levels = [options.level] if options.level else []
    return [
        Case(pattern=name, world=options.world, level=level, seed=seed)
        for seed in range(options.seeds)
        for number, name in enumerate(names)
        for level in levels or [LEVELS[(number + seed) % 2]]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real_jobs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="exit code 1 where a limit is not kept")
    parser.add_argument("--full", action="store_true", help="all patterns, seeds, sizes and noise levels")
    parser.add_argument("--write", action="store_true", help="put the tables into RESULTS.md; --full does so, too")
    parser.add_argument("--pattern", action="append", choices=list(PATTERNS), metavar="NAME", help="of the patterns")
    parser.add_argument("--alone", action="store_true", help="without the code of a9e84fb, in half the time")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--world", type=int, default=16, choices=list(SEEDS))
    parser.add_argument("--level", choices=LEVELS, help="of noise; without it the patterns take turns")
    parser.add_argument("--lanes", type=int, default=os.cpu_count() or 1, help="cases that are played at a time")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="outcomes so far: a later run goes on from there")
    options = parser.parse_args()
    asked = cases(options)
    worlds = sorted({case.world for case in asked})
    kinds = len({case.pattern for case in asked})
    size = ", ".join(f"{sum(case.world == world for case in asked)} of {world} ranks" for world in worlds)
    head = provenance(*CODE, note=f"; {kinds} of {len(PATTERNS)} patterns, {size}")
    played = Show(asked, options.keep, alone=options.alone).play(options.lanes)
    present = [both.present for both in played]
    baseline = [both.baseline for both in played if both.baseline is not None and not options.alone]
    tables = [pooled_table(present, baseline)]
    tables += [pattern_table(present, baseline, healthy=healthy) for healthy in (True, False)]
    body = "\n".join([head, *tables])
    print(body)
    if options.write or options.full:
        put(RESULTS, body)
    short = falls_short(present)
    if short:
        print("Falls short:\n\n" + "\n".join(["| limit of | measured | limit |", "|---|---|---|", *short]))
    return 1 if (options.check or options.full) and short else 0


if __name__ == "__main__":
    raise SystemExit(main())
