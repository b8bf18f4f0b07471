"""The labelled lines of tests/data/errors."""

from __future__ import annotations

from pathlib import Path

from falcon_core.errors.judge import shipped_judge
from falcon_core.errors.table import Source

DATA = Path(__file__).parents[2] / "data" / "errors"
BENIGN = "Benign"


def labelled(name: str) -> list[tuple[str, str]]:
    """Return class and line of each line in a file; the class is BENIGN for what only sounds bad."""
    found, error_class = [], BENIGN
    for line in (DATA / name).read_text().splitlines():
        if line.startswith("== "):
            error_class = line.removeprefix("== ")
        elif line and not line.startswith("# "):
            found.append((error_class, line))
    return found


def class_of(line: str, source: Source | None = None) -> str:
    """Return the class that the rules give a line; "" for none."""
    finding = shipped_judge().classifier.line(line, source)
    return finding.name if finding is not None else ""


def corpus() -> list[tuple[str, str]]:
    """Return class and line of all lines as they stand in logs."""
    return [pair for name in ("corpus.txt", "later.txt", "last.txt") for pair in labelled(name)]


# The end of what torchrun of PyTorch 2.15 printed when one of two ranks was killed.
TORCHRUN = """\
E1124 02:02:03.116000 24487 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
=======================================================
/tmp/train.py FAILED
-------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-24_02:02:03
  host      : localhost
  rank      : 2 (local_rank: 0)
  exitcode  : -15 (pid: 24513)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 24513
-------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-24_02:02:02
  host      : localhost
  rank      : 3 (local_rank: 1)
  exitcode  : -9 (pid: 24516)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 24516
=======================================================
"""
