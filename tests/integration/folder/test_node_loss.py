"""Checkpoints that several pods write: whole on the volume in one version, or not there, whichever pod is lost."""

from __future__ import annotations

import contextlib
import itertools
import stat

import pytest

from tests.integration.folder.job import Checkpoints, new_job
from tests.integration.folder.pods import Pod, Volume
from tests.integration.folder.trees import FOLDER, OWN_FOLDER, names_below, part, union, write

PIECE = 4 << 20
NOWHERE = r"(?!)"
STEP = "iter_{:07}"


def save(pods: list[Pod], step: int, *, size: int = PIECE) -> None:
    """Save as Megatron-LM does: each pod its ranks' part, then the first one the name of the step."""
    for rank, pod in enumerate(pods):
        write(pod.memory, {f"{STEP.format(step)}/mp_rank_0{rank}/model_optim_rng.pt": bytes([step]) * size})
    write(pods[0].memory, {"latest_checkpointed_iteration.txt": str(step)})


def saved(step: int, *, size: int = PIECE) -> dict[str, str | bytes]:
    """Return what two pods have saved of a step."""
    folder = STEP.format(step)
    tree: dict[str, str | bytes] = {folder: FOLDER, "latest_checkpointed_iteration.txt": str(step).encode()}
    for rank in range(2):
        tree[f"{folder}/mp_rank_0{rank}"] = FOLDER
        tree[f"{folder}/mp_rank_0{rank}/model_optim_rng.pt"] = bytes([step]) * size
    return tree


def end(pods: list[Pod]) -> None:
    """End as a job does whose ranks have all ended well."""
    volume = pods[0].volume
    for word in ("well", "flush"):
        for pod in pods:
            volume.processes.tell(pod.replica, word)
        if word == "well":
            volume.until(lambda: all(pod.said.files == 0 for pod in pods), "all is durable")
    volume.until(lambda: all(pod.said.over for pod in pods), "the flush ends")
    for pod in pods:
        pod.kill()


def bytes_of_own(volume: Volume) -> int:
    """Return how much Falcon's own folder holds."""
    own = volume.folder / OWN_FOLDER
    sizes = 0
    for name in names_below(own):
        with contextlib.suppress(FileNotFoundError):  # a file that has gone since
            found = (own / name).stat()
            sizes += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return sizes


@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_node_lost_in_the_middle_of_a_copy_leaves_the_checkpoint_before(real_volume: Volume, lost: int) -> None:
    volume = real_volume
    pods = [volume.pod(replica, bytes_per_second=PIECE) for replica in range(2)]
    save(pods, 1, size=10)
    before = saved(1, size=10)
    volume.await_tree(before)
    save(pods, 2)
    volume.until(lambda: pods[lost].said.bytes > 0, "it is seen")
    volume.until(lambda: bytes_of_own(volume) > PIECE // 2, "it is being copied")
    pods[lost].lose()
    pods[1 - lost].stop()
    assert volume.tree == before
    after = [volume.pod(replica, generation=2) for replica in range(2)]
    assert [pod.tree for pod in after] == [before, before]
    save(after, 2)
    volume.await_tree(saved(2) | before | {"latest_checkpointed_iteration.txt": b"2"})
    end(after)
    assert bytes_of_own(volume) < PIECE // 2, "what was begun is cleared away"


@pytest.mark.slow  # e2e/checkpoints/test_checkpoint_folders looks at the same on the cluster
def test_a_checkpoint_of_two_pods_appears_at_once(real_volume: Volume) -> None:
    """The pods' processes need different times; nothing names the checkpoint before both parts are there."""
    volume = real_volume
    pods = [volume.pod(0), volume.pod(1, bytes_per_second=PIECE // 2)]
    for step in (1, 2):
        save(pods, step)
        seen: set[tuple[int, bool]] = set()

        def arrived(step: int = step, seen: set[tuple[int, bool]] = seen) -> bool:
            tree = volume.tree
            named = tree.get("latest_checkpointed_iteration.txt") == str(step).encode()
            files = [path for path in part(tree, STEP.format(step)) if path.endswith(".pt")]
            seen.add((len(files), named))
            return named

        volume.until(arrived, "it is named")
        assert all(count in (0, 2) for count, _ in seen), "all of it or none"
        assert (0, True) not in seen, "it is there before it is named"
        assert all(
            tree == bytes([step]) * PIECE
            for path, tree in part(volume.tree, STEP.format(step)).items()
            if path.endswith(".pt")
        )


def test_a_pod_that_saves_nothing_holds_nobody_up(volume: Volume) -> None:
    """Hugging Face's Trainer: the first rank saves, and the others' pods only read."""
    pods = [volume.pod(replica) for replica in range(3)]
    write(pods[0].memory, {"checkpoint-10/model.safetensors": "10", "checkpoint-10/trainer_state.json": "{}"})
    pods[0].settle()
    end(pods)
    assert volume.tree == pods[0].tree


def test_what_pods_save_next_to_each_other_is_all_there(volume: Volume) -> None:
    pods = [volume.pod(replica) for replica in range(2)]
    for rank, pod in enumerate(pods):
        write(pod.memory, {f"logs/rank{rank}.txt": f"{rank}", f"step-{rank}/model.pt": f"{rank}", f"rng-{rank}": "1"})
    expected = union(pods[0].tree, pods[1].tree)
    volume.await_tree(expected)
    (pods[0].memory / "rng-0").unlink()
    del expected["rng-0"]
    volume.await_tree(expected)
    end(pods)
    assert volume.tree == expected


def test_what_one_pod_removes_goes_though_another_has_it_from_the_start(volume: Volume) -> None:
    """All pods begin with the same checkpoints; the first rank removes the oldest."""
    first = volume.pod()
    write(first.memory, {f"checkpoint-{step}/model.pt": str(step) for step in (1, 2)})
    first.settle()
    first.stop()
    pods = [volume.pod(replica, generation=2) for replica in range(2)]
    write(pods[0].memory, {"checkpoint-3/model.pt": "3"})
    (pods[0].memory / "checkpoint-1" / "model.pt").unlink()
    (pods[0].memory / "checkpoint-1").rmdir()
    expected = {path: found for path, found in pods[0].tree.items() if not path.startswith("checkpoint-1")}
    volume.await_tree(expected)
    end(pods)
    assert volume.tree == expected


def test_a_writer_that_keeps_a_log_open_does_not_hold_its_checkpoints_back(volume: Volume) -> None:
    pod = volume.pod()
    (pod.memory / "run").mkdir()
    with (pod.memory / "run" / "train.log").open("w") as log:
        log.write("begun")
        log.flush()
        write(pod.memory, {"run/checkpoint-1/model.pt": "1"})
        volume.until(lambda: volume.tree.get("run/checkpoint-1/model.pt") == b"1", "it does not wait for the log")
        log.write("step 1")
        log.flush()
        write(pod.memory, {"run/checkpoint-2/model.pt": "2"})
        volume.until(lambda: volume.tree.get("run/checkpoint-2/model.pt") == b"2", "it does not wait for the log")
    pod.settle()
    pod.finish()


def test_a_runs_folder_that_is_moved_while_it_is_copied_arrives_under_its_new_name(real_volume: Volume) -> None:
    volume = real_volume
    pod = volume.pod(bytes_per_second=PIECE)
    write(pod.memory, {"run/step-1/model.pt": b"1" * 10})
    pod.settle()
    write(pod.memory, {"run/step-2/model.pt": b"2" * 2 * PIECE})
    volume.until(lambda: bytes_of_own(volume) > PIECE // 2, "it is being copied")
    (pod.memory / "run").rename(pod.memory / "renamed")
    pod.settle()
    pod.finish()


def test_a_checkpoint_with_an_open_file_is_not_there() -> None:
    with new_job(1, Checkpoints(r"step-1", NOWHERE)) as job:
        folder = job.folders[0]
        folder.write("step-1/config.json", "<{}")
        model = folder.begin("step-1/model.pt", "<half")
        folder.write("probe", "<")
        for _ in range(15):
            job.tick()  # a file of the checkpoint is open: nothing of it is complete
        folder.finish(model)
        job.note_checkpoints()
        job.settle()
        model = folder.append("step-1/model.pt", "<half")
        folder.write("step-1/config.json", "<{1}")
        for _ in range(15):
            job.tick()
        folder.finish(model)
        job.note_checkpoints()
        job.settle()


@pytest.mark.parametrize("lost", [0, 1])
def test_a_node_lost_at_any_change_leaves_a_whole_checkpoint(lost: int) -> None:
    """The pod's process dies before one of its changes to the volume, and its memory goes with it."""
    for change in itertools.count(1):
        with new_job(2, Checkpoints(r"iter_\d+", "latest")) as job:
            for step in (1, 2):
                for rank, folder in enumerate(job.folders):
                    folder.write(f"iter_{step}/mp_rank_0{rank}/model_optim_rng.pt", f"<{step}")
                    folder.write(f"iter_{step}/mp_rank_0{rank}/distrib_optim.pt", f"<{step} as well")
                job.note_checkpoints()
                job.folders[0].write("latest", f"<iter_{step}")
                if step == 1:
                    job.settle()
                    job.driver.crash_at(lost, change)
            for _ in range(10):
                job.tick()
            if job.alive[lost]:
                break
            job.restart(lost=lost)
            job.settle()
    assert change > 5, "it makes a few changes"
