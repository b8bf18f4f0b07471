"""Real releases of NCCL, without a GPU: the shim forwards to the one that is loaded and changes no answer.

What a call does on a device is not proven here; shim/tests/nccl_test.cc proves the hooks with a stand-in. The release
that comes with PyTorch is always tested, the others after ``make nccl-releases``.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.shim.launching import SHIM

BUILT = Path(os.environ.get("SHIM_TEST_OUT", ""))
RELEASES = Path(os.environ.get("NCCL_RELEASES", ""))
TORCH = Path(os.environ.get("FALCON_CACHE", "")) / "torch" / "venv" / "lib" / "python3.11" / "site-packages"
OF_TORCH = "nvidia-nccl of PyTorch"
WHEELS = (Path(__file__).parents[3] / "shim" / "tests" / "nccl-releases.txt").read_text().split()
INVALID_USAGE = 5


def _probe(wheel: str, way: str, folder: Path, shim: bool, absent: bool = False) -> dict[str, Any]:
    library = (TORCH if wheel == OF_TORCH else RELEASES / wheel) / "nvidia" / "nccl" / "lib"
    if not (library / "libnccl.so.2").exists():
        pytest.skip(f"{wheel} is not there: make nccl-releases")
    environment = {**os.environ, "LD_LIBRARY_PATH": f"{library}:{BUILT}", "FALCON_RING_DIR": str(folder)}
    if shim:
        environment["LD_PRELOAD"] = str(SHIM / "libfalcon_shim.so")
    if absent:
        environment["PROBE_ABSENT"] = "1"
    done = subprocess.run(
        [str(BUILT / f"nccl_probe_{way}")],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.mark.parametrize("way", ["linked", "dlopen"])
@pytest.mark.parametrize("wheel", [OF_TORCH, *WHEELS])
def test_answers_are_the_librarys_own(wheel: str, way: str, tmp_path: Path) -> None:
    bare = _probe(wheel, way, tmp_path, shim=False)
    hooked = _probe(wheel, way, tmp_path, shim=True)
    assert hooked == bare
    assert hooked["version"][0] == 0
    assert hooked["version"][1] > 21800, "not the stand-in"
    if wheel != OF_TORCH:
        major, minor, patch = wheel.split("==")[1].split(".")
        assert hooked["version"][1] == int(major) * 10000 + int(minor) * 100 + int(patch)
    assert hooked["error_string"].startswith("invalid argument")
    assert hooked["group"] == [0, 0]
    assert 0 not in (hooked["all_reduce"], hooked["bad_rank"], hooked["init"]), "no GPU, no communicator"
    assert hooked["has"]["ncclAllReduce"]
    assert not list(tmp_path.glob("*.ring")), "no communicator, no rank"


@pytest.mark.parametrize("wheel", [WHEELS[0], WHEELS[-1]])
def test_a_symbol_that_the_release_lacks(wheel: str, tmp_path: Path) -> None:
    """Asked of the library itself it is absent; a call by the global name is refused instead of ending the program."""
    answers = _probe(wheel, "linked", tmp_path, shim=True, absent=True)
    assert not answers["has"]["ncclAllToAll"], "RCCL's spelling"
    assert answers["rccl_spelling"] == INVALID_USAGE
    assert answers["has"]["ncclAlltoAll"] == (wheel == WHEELS[-1])
