"""Play cases in processes of their own, and keep the outcomes so that a later run goes on."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from evaluation.real_jobs.outcome import Case, Outcome

ROOT: Final = Path(__file__).resolve().parents[2]
_CODE: Final = ("core/falcon_core", "agent/falcon_agent", "core/falcon_sim", "evaluation/real_jobs")
_NO_PART: Final = {"__main__.py", "show.py", "verdict.py", "picture.py"}  # of what leads to an outcome


class Kept(msgspec.Struct, frozen=True):
    """A line of the file of outcomes."""

    code: str  # digest of all that led to it
    outcome: Outcome


def digest() -> str:
    """Return a digest of the code that leads to an outcome, as it lies in the working tree."""
    found = hashlib.sha256()
    for folder in _CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if folder != "evaluation/real_jobs" or path.name not in _NO_PART:
                found.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


class Show:
    """Plays cases in so many lanes.

    ``kept``: a file that outcomes are appended to; those in it that the same code led to are not played again.
    """

    def __init__(self, asked: Sequence[Case], kept: Path | None) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._digest = digest()
        self._wanted = list(asked)
        self._players: list[_Player] = []
        self._is_over = False  # the time is over: no case begins, and what still plays is ended
        self.found: dict[Case, Outcome] = {}
        for line in kept.read_bytes().splitlines() if kept is not None and kept.exists() else ():
            known = msgspec.json.decode(line, type=Kept)
            if known.code == self._digest:
                self.found[known.outcome.case] = known.outcome

    def play(self, lanes: int, seconds: float | None = None) -> list[Outcome]:
        """Play what is left, for so many seconds at most. Return the outcomes in the order of the cases.

        Raises:
            RuntimeError: a case failed.
        """
        left = iter(sorted(self.unplayed, key=_order))
        threads = [threading.Thread(target=self._lane, args=(left,)) for _ in range(lanes)]
        clock = None if seconds is None else threading.Timer(seconds, self._end)
        if clock is not None:
            clock.start()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if clock is not None:
            clock.cancel()
        if self.unplayed and not self._is_over:
            raise RuntimeError(f"{len(self.unplayed)} cases have no outcome, the first of them {self.unplayed[0]}")
        return [self.found[case] for case in self._wanted if case in self.found]

    @property
    def unplayed(self) -> list[Case]:
        """Return the cases that have no outcome."""
        return [case for case in self._wanted if case not in self.found]

    def _end(self) -> None:
        with self._lock:
            self._is_over = True
            for player in self._players:
                player.kill()

    def _lane(self, left: Iterator[Case]) -> None:
        player = _Player()
        with self._lock:
            self._players.append(player)
        try:
            while (case := self._next(left)) is not None:
                self._keep(player.play(case))
        except (RuntimeError, BrokenPipeError):
            if not self._is_over:
                raise
        finally:
            player.close()

    def _next(self, left: Iterator[Case]) -> Case | None:
        with self._lock:
            return None if self._is_over else next(left, None)

    def _keep(self, outcome: Outcome) -> None:
        with self._lock:
            case = outcome.case
            self.found[case] = outcome
            done = sum(known in self.found for known in self._wanted)
            print(
                f"{done} of {len(self._wanted)}: {case.pattern}, {case.world} ranks, {outcome.seconds:.0f} s",
                file=sys.stderr,
            )
            if self._kept is not None:
                with self._kept.open("ab") as file:
                    file.write(msgspec.json.encode(Kept(self._digest, outcome)) + b"\n")


def _order(case: Case) -> tuple[int, int]:
    """Order the cases by seed, both sizes together: what was played before an end is whole up to a seed."""
    return case.seed, case.world


class _Player:
    """A process that plays cases."""

    def __init__(self) -> None:
        path = [str(ROOT / "core"), str(ROOT / "agent"), str(ROOT)]
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "evaluation.real_jobs.present"],
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
        if not line.endswith(b"\n"):
            raise RuntimeError(f"no outcome of {case}")
        return msgspec.json.decode(line, type=Outcome)

    def kill(self) -> None:
        """End the process in the middle of a case."""
        self._process.kill()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a case may wait in the buffer of a process that was killed
            self._process.stdin.close()
        self._process.wait()
