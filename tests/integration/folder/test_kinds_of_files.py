"""Files that are no plain files, and names that are no plain names, in the folder in memory."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket

import pytest

from tests.integration.folder.pods import Volume
from tests.integration.folder.trees import FOLDER, write

RENAME_EXCHANGE = 2


def exchange(one: os.PathLike[str], other: os.PathLike[str]) -> None:
    """Give each of two paths the other's name, at once."""
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), RENAME_EXCHANGE)
    assert done == 0, os.strerror(ctypes.get_errno())


def test_names_of_every_kind_arrive(volume: Volume) -> None:
    names = (
        "a\nline",
        "tab\there",
        'quote"back\\slash',
        " spaces ",
        "-rf",
        "*",
        "…",
        os.fsdecode(b"no-utf-8-\xff\xfe"),
        "n" * 255,
        ".hidden",
        "..two-dots",
        "r0.1-2.part",
        "owner",
    )
    pod = volume.pod()
    write(pod.memory, {f"step-1/{name}": name.encode(errors="surrogateescape") for name in names})
    write(pod.memory, {f"{name}/{name}": "of a folder" for name in names})
    write(pod.memory, {f"run/{name}": "of a file next to a checkpoint" for name in names})
    write(pod.memory, {"step-1/.falcon-behind/inner": "below the top it is a name as any other"})
    pod.settle()
    assert volume.pod(replica=1).tree == volume.tree
    shutil.rmtree(pod.memory / "step-1")
    for name in names:
        (pod.memory / name / name).unlink()
        (pod.memory / name).rmdir()
    pod.settle()
    pod.finish()


def test_what_the_script_puts_into_falcons_folder_is_no_part_of_the_tree(volume: Volume) -> None:
    pod = volume.pod()
    write(pod.memory, {".falcon-behind/step-1/model.pt": "not copied", "step-1/model.pt": "copied"})
    pod.settle({"step-1": FOLDER, "step-1/model.pt": b"copied"})
    assert not (volume.folder / ".falcon-behind" / "step-1").exists()


def test_pipes_and_sockets_hold_nothing_up(volume: Volume) -> None:
    pod = volume.pod()
    os.mkfifo(pod.memory / "pipe")
    write(pod.memory, {"step-1/model.pt": "step 1"})
    os.mkfifo(pod.memory / "step-1" / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(pod.memory / "step-1" / "socket"))
        pod.settle({"step-1": FOLDER, "step-1/model.pt": b"step 1"})
        (pod.memory / "pipe").unlink()
        write(pod.memory, {"pipe": "a file now"})
        pod.settle()
    pod.finish()


def test_both_names_of_a_file_arrive_and_change_together(volume: Volume) -> None:
    pod = volume.pod()
    write(pod.memory, {"step-1/model.pt": "step 1"})
    os.link(pod.memory / "step-1" / "model.pt", pod.memory / "step-1" / "best.pt")
    (pod.memory / "step-2").mkdir()
    os.link(pod.memory / "step-1" / "model.pt", pod.memory / "step-2" / "model.pt")
    pod.settle()
    (pod.memory / "step-2" / "model.pt").write_text("changed through one of its names")
    pod.settle()
    (pod.memory / "step-1" / "model.pt").unlink()
    pod.settle()
    pod.finish()


def test_a_file_with_holes_keeps_them(volume: Volume) -> None:
    pod = volume.pod()
    size = 256 << 20
    (pod.memory / "step-1").mkdir()
    with (pod.memory / "step-1" / "sparse").open("wb") as file:
        file.write(b"begin")
        file.seek(size - 3)
        file.write(b"end")
    copied = volume.folder / "step-1" / "sparse"
    volume.until(copied.exists, "it is copied")
    assert copied.stat().st_size == size
    assert copied.stat().st_blocks * 512 < size // 16
    with copied.open("rb") as file:
        assert file.read(5) == b"begin"
        file.seek(size - 3)
        assert file.read() == b"end"


def test_folders_that_change_places_arrive_with_their_own_files(volume: Volume) -> None:
    pod = volume.pod()
    write(pod.memory, {"best/model.pt": "step 1", "last/model.pt": "step 2", "last/extra": "of the last"})
    pod.settle()
    exchange(pod.memory / "best", pod.memory / "last")
    pod.settle()
    pod.finish(
        {"best": FOLDER, "best/model.pt": b"step 2", "best/extra": b"of the last", "last": FOLDER}
        | {"last/model.pt": b"step 1"}
    )


@pytest.mark.parametrize("inside", [False, True])
def test_a_name_may_become_a_thing_of_any_other_kind(volume: Volume, *, inside: bool) -> None:
    pod = volume.pod()
    folder = pod.memory / "step-1" if inside else pod.memory
    folder.mkdir(exist_ok=True)
    write(pod.memory, {"elsewhere/model.pt": "stays"})
    kinds = {
        "file": lambda path: path.write_text("a file"),
        "folder": lambda path: write(path, {"model.pt": "in a folder", "sub/deep/model.pt": "deeper"}),
        "empty": lambda path: path.mkdir(),
        "link": lambda path: path.symlink_to("elsewhere"),
    }
    before = [(one, other) for one in kinds for other in kinds if one != other]
    for turn in (0, 1):
        for pair in before:
            path = folder / "-".join(pair)
            if path.is_symlink() or path.is_file():
                path.unlink()
            elif path.exists():
                shutil.rmtree(path)
            kinds[pair[turn]](path)
        pod.settle()
    pod.finish()


def test_folders_deeper_than_a_path_may_be_long_hold_nothing_up(volume: Volume) -> None:
    pod = volume.pod()
    depth, name = 30, "d" * 200  # 6,000 bytes; a path has at most 4,096
    top = os.open(pod.memory, os.O_RDONLY)
    here = os.dup(top)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        deeper = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(os.open("model.pt", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    for opened in (here, top):
        os.close(opened)
    write(pod.memory, {"step-1/model.pt": "step 1", "step-1.pt": "step 1"})
    volume.until(lambda: (volume.folder / "step-1" / "model.pt").exists(), "the rest goes on")
    volume.until(lambda: (volume.folder / "step-1.pt").exists(), "the rest goes on")


def test_times_and_modes_arrive(volume: Volume) -> None:
    pod = volume.pod()
    write(pod.memory, {"step-1/model.pt": "step 1", "step-1/run.sh": "true", "log": "one"})
    (pod.memory / "step-1" / "run.sh").chmod(0o755)
    (pod.memory / "step-1").chmod(0o700)
    os.utime(pod.memory / "step-1" / "model.pt", ns=(10**18, 10**18 + 123456789))
    os.utime(pod.memory / "log", ns=(10**18, 10**18 + 1))
    pod.settle()
    for path in ("step-1/model.pt", "step-1/run.sh", "log"):
        copy, original = (volume.folder / path).stat(), (pod.memory / path).stat()
        assert (copy.st_mtime_ns, copy.st_mode) == (original.st_mtime_ns, original.st_mode), path
    assert (volume.folder / "step-1").stat().st_mode & 0o777 == 0o700
    (pod.memory / "step-1" / "run.sh").chmod(0o700)
    volume.until(lambda: (volume.folder / "step-1" / "run.sh").stat().st_mode & 0o777 == 0o700, "a new mode arrives")
