"""Links in the folder in memory, and links planted on the volume: none is followed, and each arrives as a link."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.integration.folder.pods import Volume, await_tick
from tests.integration.folder.trees import FOLDER, OWN_FOLDER, names_below, read_tree, write


def test_a_folder_that_becomes_a_link_leaves_its_target_whole(any_volume: Volume) -> None:
    pod = any_volume.pod()
    write(pod.memory, {"latest/model.pt": "step 1"})
    pod.settle()
    write(pod.memory, {"step-2/model.pt": "step 2"})
    pod.settle()
    shutil.rmtree(pod.memory / "latest")
    (pod.memory / "latest").symlink_to("step-2")
    pod.settle()
    pod.finish({"latest": "-> step-2", "step-2": FOLDER, "step-2/model.pt": b"step 2"})
    after = any_volume.pod(replica=1, generation=2)
    assert after.tree == any_volume.tree


def test_a_link_whose_place_a_renamed_folder_takes_leaves_its_target_whole(any_volume: Volume) -> None:
    pod = any_volume.pod()
    write(pod.memory, {"step-1/model.pt": "step 1"})
    (pod.memory / "latest").symlink_to("step-1")
    pod.settle()
    write(pod.memory, {"new/model.pt": "step 2"})
    await_tick(pod.memory)  # so that the folder is newer than its file
    (pod.memory / "latest").unlink()
    (pod.memory / "new").rename(pod.memory / "latest")
    pod.settle()
    pod.finish({"latest": FOLDER, "latest/model.pt": b"step 2", "step-1": FOLDER, "step-1/model.pt": b"step 1"})


def test_a_checkpoint_that_the_script_archives_and_links_stays_in_the_archive(any_volume: Volume) -> None:
    archive = any_volume.folder.parent / "archive"
    pod = any_volume.pod()
    write(pod.memory, {"step-1/model.pt": "step 1"})
    pod.settle()
    shutil.copytree(pod.memory / "step-1", archive / "step-1")
    shutil.rmtree(pod.memory / "step-1")
    (pod.memory / "step-1").symlink_to(archive / "step-1")
    pod.settle()
    pod.finish({"step-1": f"-> {archive}/step-1"})
    assert read_tree(archive / "step-1") == {"model.pt": b"step 1"}


@pytest.mark.parametrize("renamed", [False, True])
def test_a_link_planted_where_the_job_will_save_is_not_followed(any_volume: Volume, *, renamed: bool) -> None:
    pod = any_volume.pod()
    (any_volume.folder / "step-1").symlink_to(any_volume.victim)
    name = "tmp" if renamed else "step-1"
    write(pod.memory, {f"{name}/model.pt": "the job's"})
    if renamed:  # the folder is then newer than its file
        await_tick(pod.memory)
        (pod.memory / "tmp").rename(pod.memory / "step-1")
    pod.settle()
    pod.finish({"step-1": FOLDER, "step-1/model.pt": b"the job's"})


def test_a_link_planted_over_a_durable_folder_is_not_followed(volume: Volume) -> None:
    pod = volume.pod()
    write(pod.memory, {"run/step-1/model.pt": "step 1", "run/step-2/model.pt": "step 2"})
    pod.settle()
    for folder in ("run/step-1", "run"):
        shutil.rmtree(volume.folder / folder)
        (volume.folder / folder).symlink_to(volume.victim)
        write(pod.memory, {"run/step-1/model.pt": "step 1, changed", "run/step-3/model.pt": "step 3"})
        (pod.memory / "run/step-2/model.pt").unlink(missing_ok=True)
        write(pod.memory, {f"after-{folder.replace('/', '-')}/model.pt": "later"})
        volume.until(lambda folder=folder: f"after-{folder.replace('/', '-')}" in volume.tree, "the rest goes on")
    assert read_tree(volume.victim) == volume.foreign


def test_a_link_planted_before_the_start_is_not_followed_while_memory_is_filled(volume: Volume) -> None:
    volume.folder.mkdir()
    (volume.folder / "step-1").symlink_to(volume.victim)
    pod = volume.pod()
    assert pod.tree == {"step-1": f"-> {volume.victim}"}
    (pod.memory / "step-1").unlink()
    write(pod.memory, {"step-1/model.pt": "step 1"})
    pod.settle()
    pod.finish({"step-1": FOLDER, "step-1/model.pt": b"step 1"})


@pytest.mark.parametrize("whole_folders", [False, True])
def test_links_planted_in_place_of_all_that_is_falcons_own_are_not_followed(
    real_volume: Volume, *, whole_folders: bool
) -> None:
    """The names are those that a first generation used, taken while it copies."""
    volume = real_volume
    pod = volume.pod(bytes_per_second=1_000_000)
    own = volume.folder / OWN_FOLDER
    write(pod.memory, {"step-1/model.pt": bytes(1_000_000), "step-1/config.json": "{}", "file": bytes(1_000_000)})
    used: set[str] = set()
    volume.until(lambda: used.update(names_below(own)) or "file" in volume.tree, "copied")
    pod.stop()
    shutil.rmtree(own)
    own.mkdir()
    for name in sorted(used, reverse=not whole_folders):
        if not os.path.lexists(own / name) and not any(path.is_symlink() for path in (own / name).parents):
            (own / name).parent.mkdir(parents=True, exist_ok=True)
            (own / name).symlink_to(volume.victim / ("model.pt" if "owner" in name else "."))
    after = volume.pod(generation=2)
    write(after.memory, {"step-2/model.pt": "step 2", "file": "changed"})
    if after.alive:
        after.settle()
    assert read_tree(volume.victim) == volume.foreign


def test_a_link_in_place_of_falcons_own_folder_is_not_followed(volume: Volume) -> None:
    volume.folder.mkdir()
    (volume.folder / OWN_FOLDER).symlink_to(volume.victim)
    pod = volume.pod()
    write(pod.memory, {"step-1/model.pt": "step 1"})
    if pod.alive:
        pod.settle()
    assert read_tree(volume.victim) == volume.foreign


def test_links_of_the_script_may_point_anywhere_and_are_copied_as_they_are(volume: Volume) -> None:
    pod = volume.pod()
    write(pod.memory, {"step-1/model.pt": "step 1"})
    for name, target in {
        "outside": str(volume.victim),
        "file": str(volume.victim / "model.pt"),
        "above": "../../..",
        "itself": "itself",
        "nothing": "of-this-name/at-all",
        "step-1/up": "../step-1/model.pt",
        "own": OWN_FOLDER,
        "memory": str(pod.memory / "step-1"),
    }.items():
        (pod.memory / name).symlink_to(target)
    pod.settle()
    (pod.memory / "outside").unlink()
    write(pod.memory, {"outside/model.pt": "the job's"})
    pod.settle()
    pod.finish()


def test_a_last_checkpoint_of_an_earlier_generation_becomes_a_link(any_volume: Volume) -> None:
    """PyTorch Lightning's ``last.ckpt``: a folder of shards first, and a link to the best one afterwards."""
    first = any_volume.pod()
    write(first.memory, {"last.ckpt/__0_0.distcp": "old", "last.ckpt/.metadata": "old"})
    first.finish()
    second = any_volume.pod(generation=2)
    write(second.memory, {"epoch=2.ckpt/__0_0.distcp": "new", "epoch=2.ckpt/.metadata": "new"})
    second.settle()
    shutil.rmtree(second.memory / "last.ckpt")
    (second.memory / "last.ckpt").symlink_to("epoch=2.ckpt")
    second.settle()
    second.finish(
        {
            "last.ckpt": "-> epoch=2.ckpt",
            "epoch=2.ckpt": FOLDER,
            "epoch=2.ckpt/__0_0.distcp": b"new",
            "epoch=2.ckpt/.metadata": b"new",
        }
    )
    assert any_volume.pod(generation=3).tree == any_volume.tree


def test_what_a_pod_finds_on_the_volume_is_not_read_through_links(volume: Volume, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("of the node")
    volume.folder.mkdir()
    (volume.folder / "step-1").mkdir()
    (volume.folder / "step-1/model.pt").symlink_to(secret / "key")
    (volume.folder / "step-2").symlink_to(secret)
    pod = volume.pod()
    assert pod.tree == {"step-1": FOLDER, "step-1/model.pt": f"-> {secret}/key", "step-2": f"-> {secret}"}
