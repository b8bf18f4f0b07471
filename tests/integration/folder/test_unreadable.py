"""What the copying process may not read is named in its status, and the rest is copied: as root, and as a user."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.integration.folder.pods import Pod, RealProcesses, Volume
from tests.integration.folder.trees import FOLDER, part, write
from tests.integration.shim.launching import SHIM

OTHER_USER = 65532
USER = ("setpriv", "--reuid", str(OTHER_USER), "--regid", str(OTHER_USER), "--clear-groups")


@pytest.fixture
def user_volume(tmp_path: Path, memory: Path) -> Iterator[Volume]:
    """Yield a volume of a user who is not root; the tests' own user, where that is not root either."""
    tmp_path.chmod(0o777)
    launcher = tmp_path / "falcon-launch"  # the user may not enter the folder in which it is built
    shutil.copy(SHIM / "falcon-launch", launcher)
    as_user = USER if os.getuid() == 0 else ()
    with closing(RealProcesses([*as_user, str(launcher)])) as processes:
        made = Volume(tmp_path, memory, processes)
        for folder in (made.base, made.folder.parent):
            folder.chmod(0o777)
        yield made
        made.close()


@pytest.fixture(autouse=True)
def _reachable(tmp_path: Path) -> None:
    """Let another user through to the test's folder."""
    for folder in tmp_path.parents:
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o111)


def hand_over(pod: Pod) -> None:
    """Give what lies in the pod's folder to the user of its process."""
    if os.getuid() == 0:
        for path in pod.memory.rglob("*"):
            if path.lstat().st_uid != OTHER_USER:  # a change of owner would make it the newest change
                os.chown(path, OTHER_USER, OTHER_USER, follow_symlinks=False)


def make_file(pod: Pod) -> Path:
    write(pod.memory, {"lock": "x"})
    return pod.memory / "lock"


def make_folder(pod: Pod) -> Path:
    write(pod.memory, {"private/key": "x"})
    return pod.memory / "private"


def make_file_in_a_checkpoint(pod: Pod) -> Path:
    write(pod.memory, {"step-2/model.pt": "step 2", "step-2/lock": "x"})
    return pod.memory / "step-2" / "lock"


@pytest.mark.parametrize("make", [make_file, make_folder, make_file_in_a_checkpoint])
def test_what_cannot_be_read_is_named_and_the_rest_goes_on(user_volume: Volume, make: Callable[[Pod], Path]) -> None:
    pod = user_volume.pod()
    hidden = make(pod)
    mode = hidden.stat().st_mode
    hand_over(pod)
    hidden.chmod(0)
    write(pod.memory, {"step-1/model.pt": "step 1", "step-1.pt": "step 1"})
    hand_over(pod)
    user_volume.until(lambda: part(user_volume.tree, "step-1") == {"model.pt": b"step 1"}, "the rest goes on")
    user_volume.until(lambda: user_volume.tree.get("step-1.pt") == b"step 1", "the rest goes on")
    user_volume.until(lambda: hidden.name in pod.said.error, lambda: f"it is named: {pod.said}")
    hidden.chmod(mode)
    pod.settle()
    user_volume.until(lambda: pod.said.error == "", lambda: f"the error is over: {pod.said}")
    hidden.chmod(0)
    write(pod.memory, {"step-2.pt": "step 2"})
    hand_over(pod)
    user_volume.until(lambda: user_volume.tree.get("step-2.pt") == b"step 2", "the rest goes on")
    assert hidden.name in pod.stop(), "the end says what is given up, and does not wait for it"
    hidden.chmod(mode)


def test_root_reads_what_its_owner_may_not(volume: Volume) -> None:
    if os.getuid() != 0:
        pytest.skip("root alone reads files of mode 0")
    pod = volume.pod()
    make_file(pod).chmod(0)
    make_folder(pod).chmod(0)
    pod.settle()
    pod.finish({"lock": b"x", "private": FOLDER, "private/key": b"x"})
    assert (volume.folder / "lock").stat().st_mode & 0o777 == 0
