"""The Pythons of this machine in which a program starts as a rank does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

AGENT = Path(__file__).parents[3] / "agent"
OLDEST, NEWEST = 6, 16  # minor versions that are looked for


def _found() -> list[str]:
    """Return one Python of each version that runs, beginning with this one."""
    names = [f"python3.{minor}" for minor in range(OLDEST, NEWEST)]
    candidates = [sys.executable, *filter(None, map(shutil.which, names))]
    candidates += map(str, Path("~/.pyenv/versions").expanduser().glob("3.*/bin/python"))
    by_version: dict[str, str] = {}
    for candidate in candidates:
        ask = [candidate, "-S", "-c", "import sys; print(*sys.version_info[:2], sep='.')"]
        asked = subprocess.run(ask, capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            by_version.setdefault(asked.stdout.strip(), candidate)
    return [by_version[version] for version in sorted(by_version, key=lambda text: int(text.partition(".")[2]))]


PYTHONS = _found()


def version_of(python: str) -> tuple[int, int]:
    """Return a Python's major and minor version."""
    asked = subprocess.run(
        [python, "-S", "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=True
    )
    major, minor = asked.stdout.split()
    return int(major), int(minor)


def knows_forks(python: str) -> bool:
    """Check whether a Python can tell a forked process, without which it counts no collections."""
    return version_of(python) >= (3, 7)


def _with(pythons: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("python", pythons, ids=[f"3.{version_of(each)[1]}" for each in pythons])


every_python = _with(PYTHONS)
outer_pythons = _with(sorted({PYTHONS[0], PYTHONS[-1]}))  # the oldest and the newest


def run(
    python: str, code: str, folder: Path, *options: str, falcon: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in ``folder`` as a rank's interpreter does, or as it would without Falcon."""
    path = ":".join(str(AGENT / part) for part in ("falcon_site", "."))
    ours = {"PYTHONPATH": path, "FALCON_STACKS": str(folder)} if falcon else {}
    return subprocess.run(
        [python, *options, "-c", code],
        env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **ours, **environment},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
