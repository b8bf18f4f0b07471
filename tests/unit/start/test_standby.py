"""What a real interpreter imports ahead, what it refuses, and that it never runs its program unless it is released."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from falcon_start.imports import MOST_BYTES

AGENT = Path(__file__).parents[3] / "agent"
PROGRAM = """
import os, sys
open("ran", "w").close()
os.environ["LATE"] = "1"
try:
    import absent_package
except ImportError:
    pass
import alpha, mine, alpha.deep
import last
print(os.environ.get("RANK"), sorted(k for k in os.environ if k.startswith("FALCON")), alpha.RANK_AT_IMPORT)
"""


class Place:
    """A folder with a program, its own module, and installed packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record = folder / "imports"
        installed = folder / "site-packages"
        (installed / "alpha").mkdir(parents=True)
        (installed / "alpha" / "__init__.py").write_text("import os\nRANK_AT_IMPORT = os.environ.get('RANK')\n")
        (installed / "alpha" / "deep.py").write_text("import json\n")
        (installed / "last.py").write_text("")
        (folder / "mine.py").write_text("open('mine-ran', 'a').write('x')\n")
        (folder / "program.py").write_text(PROGRAM)
        python = folder / "python"
        python.mkdir()
        for name in ("falcon_site", "falcon_start"):
            (python / name).symlink_to(AGENT / name)
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{python}/falcon_site:{installed}:{python}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "FALCON_IMPORTS": str(self.record),
        }

    def run(self) -> str:
        command = [sys.executable, "program.py"]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=True
        ).stdout

    def recorded(self) -> list[str]:
        return self.record.read_text().rstrip("\0").splitlines()

    @contextmanager
    def held(self, record: str) -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
        self.record.write_text(record)
        ours, theirs = socket.socketpair()
        with subprocess.Popen(
            [sys.executable, "program.py"],
            cwd=self.folder,
            env={**self.environment, "FALCON_STANDBY": str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            theirs.close()
            ours.settimeout(300)
            try:
                yield process, ours
            finally:
                process.kill()
                ours.close()

    def said(self, record: str) -> str:
        """Return what a standby with that record says when its imports are done."""
        with self.held(record) as (_, ours):
            return ours.recv(1000).decode().strip()

    def ran(self) -> bool:
        return (self.folder / "ran").exists()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_rank_records_installed_packages_in_their_order_and_names_its_own(place: Place) -> None:
    place.run()
    lines = place.recorded()
    assert lines[0].startswith("p ")
    assert [line for line in lines if line[0] in "io"] == ["i alpha", "o mine", "i alpha.deep"], (
        "the last is written when another is looked for; a package that is not there, never"
    )
    assert f"e LATE {zlib.crc32(b'1')}" in lines[: lines.index("i alpha")]


def test_a_module_run_as_program_names_its_package(place: Place) -> None:
    command = [sys.executable, "-m", "alpha.deep"]
    subprocess.run(command, cwd=place.folder, env=place.environment, check=True)
    assert "m alpha" in place.recorded()
    assert place.said("m alpha\ni alpha\n") == "ready"


def test_a_record_ends_where_it_is_too_long(place: Place) -> None:
    with place.held("x\n" * MOST_BYTES) as (process, ours):
        assert ours.recv(1000) == b"ready \n"
        ours.sendall(b"RANK=3\0.")
        assert ours.recv(1) == b"o"
        ours.sendall(b"g")
        process.communicate(timeout=600)
    assert place.record.stat().st_size == 2 * MOST_BYTES


def test_a_released_standby_runs_with_the_ranks_environment(place: Place) -> None:
    with place.held("i alpha\ni alpha.deep\n") as (process, ours):
        assert ours.recv(1000) == b"ready \n"
        assert not place.ran()
        ours.sendall(b"RANK=3\0GO")
        ours.sendall(b"NE\0.")
        assert ours.recv(1) == b"o"
        assert not place.ran(), "it waits for the last word"
        ours.sendall(b"g")
        out, error = process.communicate(timeout=600)
    assert (out, error) == ("3 [] None\n", ""), "alpha was imported before the rank was known"
    assert (place.folder / "mine-ran").read_text() == "x"
    lines = place.recorded()
    assert lines[:2] == ["i alpha", "i alpha.deep"]
    assert f"p {process.pid}" in lines
    assert "o mine" in lines


@pytest.mark.parametrize("word", [b"", b"RANK=3\0", b"RANK=3\0."])
def test_without_the_last_word_it_ends_and_has_run_nothing(place: Place, word: bytes) -> None:
    with place.held("i alpha\n") as (process, ours):
        ours.recv(1000)
        ours.sendall(word)
        ours.shutdown(socket.SHUT_WR)
        assert process.wait(timeout=600) == 0
    assert not place.ran()


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ("i no_such_module\n", "failed the import of no_such_module ended with ModuleNotFoundError"),
        ("o alpha\ni beta\n", "failed installed packages import alpha, a module of the program's own"),
        ("i leaving\n", "failed the import of leaving ended with SystemExit(3)"),
        (f"e HOME {zlib.crc32(b'/')}\ni alpha\n", "ready alpha was imported after HOME was set"),
        ("e PATH -\ni alpha\n", "ready alpha was imported after PATH was set"),
        ("i local\n", "ready"),
        ("nonsense\n\ni\n\xff\n", "ready"),
    ],
)
def test_what_it_refuses(place: Place, record: str, reason: str) -> None:
    installed = place.folder / "site-packages"
    (installed / "beta.py").write_text("try:\n    import alpha\nexcept Exception:\n    pass\n")
    (installed / "leaving.py").write_text("import sys\nsys.exit(3)\n")
    (installed / "local.py").write_text("open('ran', 'w').close()\n")
    about = installed / "local-1.0.dist-info"
    about.mkdir()
    (about / "direct_url.json").write_text('{"dir_info": {}, "url": "file:///src"}')
    (about / "RECORD").write_text("local.py,sha256=0,9\nlocal-1.0.dist-info/RECORD,,\n")
    assert place.said(record).startswith(reason)
    assert not place.ran()


def test_without_its_record_it_ends(place: Place) -> None:
    place.record.mkdir()
    environment = {**place.environment, "FALCON_STANDBY": "99"}
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=place.folder, env=environment, capture_output=True)
    assert done.returncode == 1
    assert not place.ran()


def test_a_child_of_a_rank_records_nothing(place: Place) -> None:
    (place.folder / "program.py").write_text(
        "import os, subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import alpha, last'], check=True)\n"
        "if os.fork() == 0:\n    import alpha, alpha.deep\n    os._exit(0)\nos.wait()\n"
    )
    place.run()
    assert not [line for line in place.recorded() if "alpha" in line]


def test_what_another_pods_rank_imported_is_imported_and_begins_this_ranks_own_record(place: Place) -> None:
    others = place.folder / "others"
    others.write_text("p 7\ni alpha\n")
    ours, theirs = socket.socketpair()
    with subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=place.folder,
        env={
            **place.environment,
            "FALCON_STANDBY": str(theirs.fileno()),
            "FALCON_STANDBY_IMPORTS": str(others),
        },
        pass_fds=[theirs.fileno()],
    ) as process:
        theirs.close()
        ours.settimeout(300)
        assert ours.recv(1000) == b"ready \n"
        assert not place.record.exists()
        ours.sendall(b"RANK=3\0.")
        assert ours.recv(1) == b"o"
        ours.sendall(b"g")
        process.wait(timeout=600)
    ours.close()
    lines = place.recorded()
    assert lines[:3] == ["p 7", "i alpha", f"p {process.pid}"]
    assert "i alpha.deep" in lines[3:], "what the program imports itself follows"
    assert others.read_text() == "p 7\ni alpha\n"
