"""Records what a library does to its folder: ``recording.py LIBRARY PACKAGE RANKS OUT``, by an interpreter that has it.

Each rank runs ``savers.py`` under strace, in a folder of its own, as the pods of a job do. The recording is what the
calls of all threads that succeeded did to this folder, in the order of their beginnings.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

CALLS = "openat,open,creat,write,pwrite64,writev,pwritev,ftruncate,close,rename,renameat,renameat2,unlink,unlinkat"
CALLS += ",rmdir,mkdir,mkdirat,symlink,symlinkat,link,linkat,copy_file_range,sendfile"
LINE = re.compile(r"(?P<at>[\d.]+) (?P<call>\w+)\((?P<words>.*)\)\s+= (?P<result>-?\d+)(?:<(?P<opened>[^>]*)>)?")
AT_PATH = re.compile(r'(?:AT_FDCWD(?:<(?P<cwd>[^>]*)>)?|\d+<(?P<below>[^>]*)>)?(?:, )?"(?P<path>(?:[^"\\]|\\.)*)"')
DESCRIPTOR = re.compile(r"\d+<(?P<path>[^>]*)>")
Operation = list[object]


def run(library: str, ranks: int, base: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = str(Path(__file__).with_name("savers.py"))
    processes = []
    for rank in range(ranks):
        (base / f"rank{rank}").mkdir()
        environment = {
            "RANK": rank,
            "LOCAL_RANK": 0,
            "NODE_RANK": rank,
            "WORLD_SIZE": ranks,
            "LOCAL_WORLD_SIZE": 1,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "DS_ACCELERATOR": "cpu",
            "JAX_PLATFORMS": "cpu",
            "TORCHINDUCTOR_CACHE_DIR": base / "cache",
        }
        trace = ["strace", "-ff", "-ttt", "-y", "-s", "4096", "-e", f"trace={CALLS}", "-o", str(base / f"trace{rank}")]
        command = [*trace, sys.executable, program, library, str(base / f"rank{rank}")]
        given = {**os.environ, **{name: str(value) for name, value in environment.items()}}
        processes.append(subprocess.Popen(command, env=given))
    if any(process.wait() != 0 for process in processes):
        sys.exit("a rank failed")


def operations(base: Path, rank: int) -> Iterator[tuple[float, Operation]]:
    root = f"{base}/rank{rank}"
    for trace in base.glob(f"trace{rank}.*"):
        for line in trace.read_text(errors="replace").splitlines():
            match = LINE.match(line)
            if match is None:
                continue
            found = operation(match, root)
            if found is not None:
                yield float(match["at"]), found


def operation(match: re.Match[str], root: str) -> Operation | None:
    """Return what a call did to the folder, or None."""
    call, words = match["call"], match["words"]
    if "no-such/saved" in words:
        return ["saved"]
    if int(match["result"]) < 0:
        return None
    if call in ("openat", "open", "creat"):
        return opening(match, root)
    if call in ("write", "pwrite64", "writev", "pwritev", "copy_file_range", "sendfile", "ftruncate", "close"):
        return writing(match, root)
    paths = [path for path in (below(found, root) for found in AT_PATH.finditer(words)) if path is not None]
    return naming(call, words, paths) if paths else None


def opening(match: re.Match[str], root: str) -> Operation | None:
    """Return the opening of a file for writing, with its number."""
    call, words = match["call"], match["words"]
    path = below_root(match["opened"] or "", root)
    if path is None or not re.search(r"O_WRONLY|O_RDWR|creat", words + call):
        return None
    how = "append" if "O_APPEND" in words else "new" if "O_TRUNC" in words else "update"
    return ["open", path, how, int(match["result"])]


def writing(match: re.Match[str], root: str) -> Operation | None:
    """Return a change of an open file, or its end with its number."""
    call, words = match["call"], match["words"]
    descriptors = DESCRIPTOR.findall(words)
    second = call == "copy_file_range" and len(descriptors) > 1
    path = below_root(descriptors[1 if second else 0], root) if descriptors else None
    if path is None:
        return None
    if call == "close":
        return ["close", path, int(words.split("<")[0])]
    if call == "ftruncate":
        return ["write", path, int(words.rsplit(", ", 1)[1])]
    name = re.search(r', "([\w.=-]{1,40})(?:\\n)?", \d+$', words)  # a file may hold the name of a checkpoint
    return ["write", path, int(match["result"]), *([name[1]] if name else [])]


def naming(call: str, words: str, paths: list[str]) -> Operation | None:
    """Return a change of names."""
    if call.startswith("symlink"):
        target = re.match(r'"((?:[^"\\]|\\.)*)"', words)
        return ["symlink", paths[-1], target[1] if target else ""]
    if call.startswith(("rename", "link")):
        return [call[:6] if call.startswith("rename") else "link", *paths] if len(paths) == 2 else None
    if call.startswith("mkdir"):
        return ["mkdir", paths[0]]
    return ["rmdir" if call == "rmdir" or "AT_REMOVEDIR" in words else "unlink", paths[0]]


def below(found: re.Match[str], root: str) -> str | None:
    return below_root(str(Path(found["cwd"] or found["below"] or "") / found["path"]), root)


def below_root(path: str, root: str) -> str | None:
    path = path.removesuffix(" (deleted)")
    return os.path.relpath(path, root) if path.startswith(f"{root}/") else None


def joined(timed: list[tuple[float, int, Operation]]) -> list[Operation]:
    """Return the operations in order, each after the second of its beginning and its rank; writes to a file add up."""
    begin = timed[0][0] if timed else 0.0
    out: list[Operation] = []
    opened: set[tuple[int, object]] = set()  # rank, number of the open file
    for at, rank, found in timed:
        if found[0] in ("open", "close"):
            file = (rank, found.pop())
            if found[0] == "close" and file not in opened:
                continue  # it was open for reading
            opened ^= {file}
        before = out[-1] if out else []
        if found[0] == "write" and before[1:4] == [rank, "write", found[1]]:
            before[4:] = [int(str(before[4])) + int(str(found[2]))]
        else:
            out.append([round(at - begin, 3), rank, *found])
    return out


def main() -> None:
    library, package, ranks, out = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        base = Path(name)
        run(library, ranks, base)
        timed = [(at, rank, found) for rank in range(ranks) for at, found in operations(base, rank)]
    versions = {name: importlib.metadata.version(name) for name in package.split(",")}
    recording = {
        "how": "recorded by programs/recording.py: savers.py under strace, one folder a rank, on CPUs",
        "versions": versions,
        "python": sys.version.split()[0],
        "ranks": ranks,
        "operations": joined(sorted(timed, key=lambda each: each[0])),
    }
    rows = ",\n".join(f"  {json.dumps(row)}" for row in recording.pop("operations"))  # type: ignore[attr-defined]
    head = json.dumps(recording, indent=1)[:-2]
    out.write_text(f'{head},\n "operations": [\n{rows}\n ]\n}}\n')


if __name__ == "__main__":
    main()
