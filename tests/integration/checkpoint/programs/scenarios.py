"""What a script sees of its checkpoints, one function a story: scenarios.py NAME FOLDER. Fails by AssertionError."""

import logging
import os
import sys
import threading
import time
from pathlib import Path

import torch

from falcon_torch import Checkpoint, CheckpointError

logging.basicConfig(format="%(message)s")
STORE = os.environ.get("FALCON_CHECKPOINT_DIR", "")
MIB = 1 << 20


def numbers(step, count=MIB):
    return {"x": torch.full((count,), step % 251, dtype=torch.uint8)}


def refused(error, words, call, *arguments):
    try:
        call(*arguments)
    except error as found:
        return words in str(found)
    return False


def flip(path, at):
    with Path(path).open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 4]))


def every_kind_of_value(folder):
    base = torch.randn(64, 64)
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(16)).sum().backward()
    optimizer.step()
    saved = {
        "base": base,
        "slice": base[3:5],
        "transposed": base.t(),
        "every second": base[:, ::2],
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3.5),
        "types": [
            torch.ones(5).to(dtype)
            for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool, torch.complex64)
        ],
        "quantised": torch.quantize_per_tensor(torch.randn(9), 0.1, 0, torch.qint8),
        "sparse": torch.eye(4).to_sparse(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "conjugate": torch.ones(2, dtype=torch.complex64).conj(),
        "plain": [1, (2.5, "x"), None, {3: b"y"}],
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    Checkpoint(folder).save(saved, 7)
    step, found = Checkpoint(folder).load()
    assert step == 7
    assert found.keys() == saved.keys()
    for name in ("base", "slice", "transposed", "every second", "empty", "scalar", "parameter", "conjugate"):
        assert torch.equal(found[name], saved[name]), name
        assert found[name].stride() == saved[name].stride(), name
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found["types"], saved["types"], strict=True))
    assert torch.equal(found["quantised"].int_repr(), saved["quantised"].int_repr())
    assert torch.equal(found["sparse"].to_dense(), saved["sparse"].to_dense())
    assert isinstance(found["parameter"], torch.nn.Parameter)
    assert found["plain"] == saved["plain"]
    found["base"][3, 0] = 42.0
    assert found["slice"][0, 0] == 42.0, "they share a storage, as before"
    fresh = torch.nn.Linear(16, 16)
    fresh.load_state_dict(found["model"])
    torch.optim.AdamW(fresh.parameters()).load_state_dict(found["optimizer"])
    assert torch.equal(fresh.weight, model.weight)


def a_value_that_cannot_be_saved(folder):
    checkpoint = Checkpoint(folder)
    checkpoint.save(numbers(1), 1)
    assert refused(CheckpointError, "the state cannot be saved", checkpoint.save, {"value": lambda: 0}, 2)
    assert Checkpoint(folder).load()[0] == 1


def changes_after_a_save_are_not_in_it(folder):
    checkpoint, state = Checkpoint(folder), numbers(1, 32 * MIB)
    checkpoint.save(state, 1)
    state["x"].fill_(9)
    _, found = Checkpoint(folder).load()
    assert bool((found["x"] == 1).all())
    checkpoint.wait()
    os.environ.pop("FALCON_CHECKPOINT_DIR", None)
    _, found = Checkpoint(folder).load()
    assert bool((found["x"] == 1).all()), "nor in the file"


def loaded_tensors_are_the_scripts_own(folder):
    Checkpoint(None).save(numbers(1), 1)
    checkpoint = Checkpoint(None)
    _, other = checkpoint.load()
    _, found = checkpoint.load()
    found["x"][:100] = 77
    assert bool((Checkpoint(None).load()[1]["x"] == 1).all()), "the store is as it was"
    for step in (2, 3, 4):
        checkpoint.save(numbers(step), step)
    assert bool((found["x"][:100] == 77).all())
    assert bool((found["x"][100:] == 1).all()), "later saves do not change what was loaded"
    assert bool((other["x"] == 1).all())


def a_flipped_bit_is_refused_by_name(folder):
    checkpoint = Checkpoint(None)
    for step in (10, 20):
        checkpoint.save(numbers(step, 20 * MIB), step)
    checkpoint.wait()
    flip(f"{STORE}/rank-0.1", 19 * MIB)
    step, found = Checkpoint(None).load()
    assert step == 10
    assert bool((found["x"] == 10).all())


def a_save_that_has_no_checksums_yet_is_used_and_says_so(folder):
    checkpoint = Checkpoint(None)
    checkpoint.save(numbers(10), 10)
    checkpoint.wait()
    with Path(f"{STORE}/rank-0.0").open("r+b") as file:
        file.seek(2048)
        file.write(bytes(64))  # as after a kill between commit and checksums
    assert Checkpoint(None).load()[0] == 10


def a_file_that_was_cut_falls_back_to_the_one_before(folder):
    checkpoint = Checkpoint(folder)
    for step in (10, 20, 30):
        checkpoint.save(numbers(step), step)
    names = sorted(path.name for path in Path(folder).iterdir())
    assert names == [f"step-{step:012d}.rank-0-of-1.falcon" for step in (20, 30)], "the newest two"
    os.truncate(f"{folder}/{names[-1]}", MIB // 2)
    step, found = Checkpoint(folder).load()
    assert step == 20
    assert bool((found["x"] == 20).all())


def a_damaged_file_falls_back_to_the_one_before(folder):
    checkpoint = Checkpoint(folder)
    for step in (20, 30):
        checkpoint.save(numbers(step), step)
    flip(f"{folder}/step-{30:012d}.rank-0-of-1.falcon", MIB // 2)
    assert Checkpoint(folder).load()[0] == 20


def damaged_memory_falls_back_to_the_file_of_the_same_step(folder):
    checkpoint = Checkpoint(folder)
    checkpoint.save(numbers(20), 20)
    checkpoint.wait()
    flip(f"{STORE}/rank-0.0", MIB // 2)
    step, found = Checkpoint(folder).load()
    assert step == 20
    assert bool((found["x"] == 20).all())


def what_does_not_fit_goes_to_the_folder(folder):
    checkpoint = Checkpoint(folder)
    for step in (1, 2):
        checkpoint.save(numbers(step, 80 * MIB), step)
    assert checkpoint.counts.in_folder == 2
    assert Checkpoint(folder).load()[0] == 2
    large = numbers(1, 80 * MIB)
    assert refused(CheckpointError, "raise spec.checkpoint.memory", Checkpoint(None).save, large, 3)


def a_folder_that_goes_away_costs_the_files_alone(folder):
    checkpoint = Checkpoint(f"{folder}/inner")
    checkpoint.load()
    Path(f"{folder}/inner").rmdir()
    checkpoint.save(numbers(5), 5)
    checkpoint.wait()
    assert checkpoint.counts.folder_failures == 1
    assert Checkpoint(None).load()[0] == 5


def stuck(folder, step):
    """Let the file of a step be a pipe: whoever writes it waits until somebody reads. Return the pipe's path."""
    path = f"{folder}/step-{step:012d}.rank-0-of-1.falcon.{os.getpid()}.tmp"
    os.mkfifo(path)
    return path


def a_save_waits_for_the_one_before_the_last(folder):
    checkpoint = Checkpoint(folder)
    checkpoint.load()
    pipe = stuck(folder, 1)
    checkpoint.save(numbers(1), 1)
    checkpoint.save(numbers(2), 2)

    def release():
        time.sleep(1.5)
        os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))

    began = time.monotonic()
    threading.Thread(target=release).start()
    checkpoint.save(numbers(3), 3)
    assert time.monotonic() - began > 0.4
    assert checkpoint.counts.waited_seconds > 0.4
    assert Checkpoint(None).load()[0] == 3


def a_save_is_skipped_where_it_would_wait(folder):
    checkpoint = Checkpoint(folder, when_behind="skip")
    checkpoint.load()
    pipe = stuck(folder, 1)
    assert [checkpoint.save(numbers(step), step) for step in (1, 2, 3)] == [True, True, False]
    assert (checkpoint.counts.saved, checkpoint.counts.skipped) == (2, 1)
    assert Checkpoint(None).load()[0] == 2
    os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
    checkpoint.wait()
    assert checkpoint.save(numbers(4), 4)


def a_second_process_does_not_get_the_buffers(folder):
    torch.set_num_threads(1)  # a fork has none of its parent's threads
    checkpoint = Checkpoint(None)
    checkpoint.save(numbers(1), 1)
    child = os.fork()
    if not child:
        Checkpoint(folder).save(numbers(2), 2)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert Checkpoint(None).load()[0] == 1
    assert [path.name for path in Path(folder).iterdir()] == [f"step-{2:012d}.rank-0-of-1.falcon"]


def nothing_is_there(folder):
    assert Checkpoint(folder).load() == (0, None)


def neither_store_nor_folder(folder):
    os.environ.pop("FALCON_CHECKPOINT_DIR", None)
    assert refused(ValueError, "spec.checkpoint.memory", Checkpoint)


def ranks_that_come_and_go_are_refused(folder):
    checkpoint = Checkpoint(folder)
    os.environ["FALCON_ELASTIC"] = "1"
    assert refused(CheckpointError, "torch.save", checkpoint.save, numbers(1), 1)
    assert refused(CheckpointError, "torch.save", checkpoint.load)
    assert refused(CheckpointError, "torch.save", checkpoint.wanted)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
