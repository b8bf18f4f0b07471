"""Plays cases with both codes, each in processes of its own, and keeps the outcomes so that a later run goes on."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from evaluation.real_jobs.outcome import Case, Outcome

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = Path(os.environ.get("FALCON_CACHE", Path.home() / ".cache" / "falcon"))
BASELINE: Final = "a9e84fb"
Name = Literal["present", "baseline"]
_SCENES: Final = ("core/falcon_sim", "evaluation/real_jobs")
_CODE: Final[dict[Name, tuple[str, ...]]] = {
    "present": ("core/falcon_core", "agent/falcon_agent", *_SCENES),
    "baseline": _SCENES,
}
_NO_PART: Final = {"__main__.py", "show.py", "verdict.py", "picture.py"}  # of what leads to an outcome


class Kept(msgspec.Struct, frozen=True):
    """A line of the file of outcomes."""

    name: Name
    code: str  # digest of all that led to it
    outcome: Outcome


def digest(name: Name) -> str:
    """Return a digest of the code that leads to an outcome, as it lies in the working tree."""
    found = hashlib.sha256()
    for folder in _CODE[name]:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if folder != "evaluation/real_jobs" or path.name not in _NO_PART:
                found.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


class Show:
    """Plays cases in so many lanes.

    ``beside``: the cases that the baseline plays, too. ``kept``: a file that outcomes are appended to; those in it that
    the same code led to are not played again.
    """

    def __init__(self, asked: Sequence[Case], beside: Collection[Case], kept: Path | None) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._digests: dict[Name, str] = {"present": digest("present"), "baseline": digest("baseline")}
        self._wanted: list[tuple[Name, Case]] = [("present", case) for case in asked]
        self._wanted += [("baseline", case) for case in asked if case in set(beside)]
        self.found: dict[tuple[Name, Case], Outcome] = {}
        for line in kept.read_bytes().splitlines() if kept is not None and kept.exists() else ():
            known = msgspec.json.decode(line, type=Kept)
            if known.code == self._digests[known.name]:
                self.found[known.name, known.outcome.case] = known.outcome

    def play(self, lanes: int) -> tuple[list[Outcome], list[Outcome]]:
        """Play what is left. Returns the outcomes of both codes in the order of the cases.

        Raises:
            RuntimeError: a case failed, or the codes were given different records.
        """
        left = iter(sorted((key for key in self._wanted if key not in self.found), key=_order))
        threads = [threading.Thread(target=self._lane, args=(left,)) for _ in range(lanes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        missing = [key for key in self._wanted if key not in self.found]
        if missing:
            raise RuntimeError(f"{len(missing)} cases have no outcome, the first of them {missing[0]}")
        present, baseline = (
            [self.found[key] for key in self._wanted if key[0] == name] for name in ("present", "baseline")
        )
        for outcome in baseline:
            if outcome.records_crc != self.found["present", outcome.case].records_crc:
                raise RuntimeError(f"{outcome.case}: the codes got different records")
        return present, baseline

    def _lane(self, left: Iterator[tuple[Name, Case]]) -> None:
        players: dict[Name, _Player] = {}
        try:
            while (key := self._next(left)) is not None:
                name, case = key
                if name not in players:
                    players[name] = _Player(name)
                self._keep(name, players[name].play(case))
        finally:
            for player in players.values():
                player.close()

    def _next(self, left: Iterator[tuple[Name, Case]]) -> tuple[Name, Case] | None:
        with self._lock:
            return next(left, None)

    def _keep(self, name: Name, outcome: Outcome) -> None:
        with self._lock:
            self.found[name, outcome.case] = outcome
            done = sum(key in self.found for key in self._wanted)
            case = outcome.case
            print(
                f"{done} of {len(self._wanted)}: {case.pattern}, {case.world} ranks, {name}, {outcome.seconds:.0f} s",
                file=sys.stderr,
            )
            if self._kept is not None:
                with self._kept.open("ab") as file:
                    file.write(msgspec.json.encode(Kept(name, self._digests[name], outcome)) + b"\n")


def _order(key: tuple[Name, Case]) -> tuple[int, int]:
    """Order the cases by seed, both codes and both sizes: what was played before an end is whole up to a seed."""
    return key[1].seed, key[1].world


class _Player:
    """A process that plays cases with one code."""

    def __init__(self, name: Name) -> None:
        path = [str(ROOT)] if name == "present" else [str(_packages()), str(ROOT)]
        if name == "present":
            path = [str(ROOT / "core"), str(ROOT / "agent"), *path]
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"evaluation.real_jobs.{name}"],
            cwd=ROOT,
            env={**os.environ, **threads, "PYTHONPATH": os.pathsep.join(path)},
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


def _packages() -> Path:
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
