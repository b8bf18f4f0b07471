"""Volumes with pods, for tests of the folder in memory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.integration.folder.driver import Driver
from tests.integration.folder.pods import RealProcesses, Volume

BOTH = ["clock", "real"]
MOSTLY_CLOCK = ["clock", pytest.param("real", marks=pytest.mark.slow)]


@pytest.fixture
def memory() -> Iterator[Path]:
    """Yield a folder in memory that goes with its test."""
    folder = Path(tempfile.mkdtemp(prefix="falcon-folder-", dir="/dev/shm"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def volume_of(kind: str, base: Path, memory: Path) -> Iterator[Volume]:
    """Yield an empty volume; that nothing outside its durable folder has changed is checked at the end."""
    with Driver() if kind == "clock" else closing(RealProcesses()) as processes:
        made = Volume(base, memory, processes)
        yield made
        made.close()


@pytest.fixture(params=MOSTLY_CLOCK)
def volume(request: pytest.FixtureRequest, tmp_path: Path, memory: Path) -> Iterator[Volume]:
    """Yield a volume under the virtual clock; by real processes, in a test that takes long."""
    with volume_of(request.param, tmp_path, memory) as made:
        yield made


@pytest.fixture(params=BOTH)
def any_volume(request: pytest.FixtureRequest, tmp_path: Path, memory: Path) -> Iterator[Volume]:
    """Yield a volume of each kind."""
    with volume_of(request.param, tmp_path, memory) as made:
        yield made


@pytest.fixture
def real_volume(tmp_path: Path, memory: Path) -> Iterator[Volume]:
    """Yield a volume of real processes."""
    with volume_of("real", tmp_path, memory) as made:
        yield made
