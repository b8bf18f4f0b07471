"""Real releases of NCCL, without a GPU: the shim forwards to the loaded release and changes no answer.

What a call does on a device is not proven here; shim/tests/nccl/nccl_test.cc proves the hooks with a stand-in. The
release that comes with PyTorch is always tested, the others after ``make nccl-releases``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dev.nccl_coverage import faults, release, shims_table
from tests.integration.shim.launching import SHIM

BUILT = Path(os.environ.get("SHIM_TEST_OUT", ""))
RELEASES = Path(os.environ.get("NCCL_RELEASES", ""))
TORCH = Path(os.environ.get("FALCON_CACHE", "")) / "torch" / "venv" / "lib" / "python3.11" / "site-packages"
OF_TORCH = "nvidia-nccl of PyTorch"
# The newest version of the profiler interface by release; each release takes all older versions, too.
PROFILERS = {(2, 18): 0, (2, 19): 0, (2, 21): 0, (2, 26): 3, (2, 30): 6, (2, 32): 7}
WHEELS = (Path(__file__).parents[3] / "shim" / "tests" / "nccl-releases.txt").read_text().split()
INVALID_USAGE = 5


def _library(wheel: str) -> Path:
    path = (TORCH if wheel == OF_TORCH else RELEASES / wheel) / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    if not path.exists():
        pytest.skip(f"{wheel} is not there: make nccl-releases")
    return path


def _probe(wheel: str, way: str, folder: Path, shim: bool, absent: bool = False) -> dict[str, Any]:
    library = _library(wheel).parent
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


@pytest.mark.parametrize("wheel", [OF_TORCH, *WHEELS])
def test_each_function_that_communicates_is_hooked_or_ignored_with_a_reason(wheel: str) -> None:
    exported, declared = release(_library(wheel).parents[3])
    assert "ncclAllReduce" in exported
    assert faults(exported, declared, shims_table()) == []


@pytest.mark.parametrize("wheel", [WHEELS[0], WHEELS[-1]])
def test_a_symbol_that_the_release_lacks(wheel: str, tmp_path: Path) -> None:
    """Asked of the library itself it is absent; a call by the global name is refused instead of ending the program."""
    answers = _probe(wheel, "linked", tmp_path, shim=True, absent=True)
    assert not answers["has"]["ncclAllToAll"], "RCCL's spelling"
    assert answers["rccl_spelling"] == INVALID_USAGE
    assert answers["has"]["ncclAlltoAll"] == (wheel == WHEELS[-1])


@pytest.mark.parametrize("wheel", [OF_TORCH, *WHEELS])
def test_the_profiler_versions_that_a_release_looks_for(wheel: str, tmp_path: Path) -> None:
    """What it calls them stands in the library; whether it takes them is seen only with a GPU."""
    version = _probe(wheel, "linked", tmp_path, shim=False)["version"][1]
    library = _library(wheel).read_bytes()
    sought = {int(found) for found in re.findall(rb"ncclProfiler_v(\d+)\0", library)}
    newest = PROFILERS.get((version // 10000, version // 100 % 100))
    assert newest is not None, f"release {version} is not in the table"
    assert sought == set(range(1, newest + 1))
    assert (b"NCCL_PROFILER_PLUGIN\0" in library) == bool(sought)
    if not sought:
        return
    exported = subprocess.run(
        ["nm", "-D", "--defined-only", str(SHIM / "libfalcon_shim.so")], check=True, capture_output=True, text=True
    ).stdout
    offered = {int(number) for number in re.findall(r" ncclProfiler_v(\d+)$", exported, re.MULTILINE)}
    assert offered == {1, 2, 3, 4, 5}
    for name in (b"AllReduce", b"ReduceScatter", b"Send", b"ncclFloat32", b"ncclFloat8e5m2"):
        assert name + b"\0" in library, "what the plugin knows operations and types by"


# ncclDataType_t's numbers, as `kTypes` of shim/tests/nccl/profiler_test.cc has them.
TYPE_NAMES = [
    "ncclInt8",
    "Unknown",
    "ncclInt32",
    "ncclUint32",
    "ncclInt64",
    "ncclUint64",
    "ncclFloat16",
    "ncclFloat32",
    "ncclFloat64",
    "ncclBfloat16",
    "ncclFloat8e4m3",
    "ncclFloat8e5m2",
]
# Calls the function by its distance from an exported function. In its own process: the library stays out of this one.
ASK_NAMES = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
exported = ctypes.cast(library.ncclGetVersion, ctypes.c_void_p).value
name_of = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_int)(exported + int(sys.argv[2]))
print(json.dumps([name_of(number).decode() for number in range(int(sys.argv[3]))]))
"""


@pytest.mark.parametrize("wheel", [OF_TORCH, *WHEELS])
def test_the_names_of_types_that_a_release_gives_to_a_plugin(wheel: str) -> None:
    """Of the types that its header has, only uint8 is "Unknown"; the plugin counts its bytes by that."""
    library = _library(wheel)
    listed = subprocess.run(["nm", str(library)], check=True, capture_output=True, text=True).stdout
    places = {name: int(place, 16) for place, name in re.findall(r"^([0-9a-f]+) [tTW] (\w+)$", listed, re.MULTILINE)}
    namer = places.get("_Z20ncclDatatypeToString14ncclDataType_t")
    if namer is None:
        assert b"ncclProfiler_v" not in library.read_bytes(), "it has a profiler interface: where are its names?"
        return
    header = (library.parents[1] / "include" / "nccl.h").read_text()
    counts = [int(count) for count in re.findall(r"ncclNumTypes\s*=\s*(\d+)", header)]
    distance = namer - places["ncclGetVersion"]
    ask = [sys.executable, "-c", ASK_NAMES, str(library), str(distance), str(max(counts))]
    names = json.loads(subprocess.run(ask, check=True, capture_output=True, text=True, timeout=60).stdout)
    assert names == TYPE_NAMES[: max(counts)]
