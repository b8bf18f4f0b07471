"""``Checkpoint(replicated=True)`` on several pods, one function a story: replicated.py NAME FOLDER.

It fails by AssertionError. The ranks of a pod share FALCON_CHECKPOINT_DIR; a pod has LOCAL_WORLD_SIZE ranks.
"""

import logging
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from falcon_torch import Checkpoint, CheckpointError
from falcon_torch.store.format import PAGE_BYTES, unpack_commit

logging.basicConfig(format="%(message)s")
warnings.filterwarnings("ignore")
STORE = os.environ["FALCON_CHECKPOINT_DIR"]
LOCAL, PER_POD = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])


def state_of(step):
    generator = torch.Generator().manual_seed(step)
    whole = torch.randn(1000, 333, generator=generator)
    return {
        "weights": whole,
        "shared": whole[3:5],
        "one": torch.randn(3, generator=generator),
        "half": torch.randn(77, generator=generator).bfloat16(),
        "empty": torch.empty(0, 3),
        "words": ["x", {"at": step}],
    }


def same(one, other):
    tensors = [name for name, value in one.items() if isinstance(value, torch.Tensor)]
    return one["words"] == other["words"] and all(torch.equal(one[name], other[name]) for name in tensors)


def saved(checkpoint, *steps):
    for step in steps:
        state = state_of(step)
        checkpoint.save(state, step)
        state["weights"].zero_()
    checkpoint.wait()
    dist.barrier()


def commits():
    found = []
    for number in range(2):
        with Path(f"{STORE}/rank-{LOCAL}.{number}").open("rb") as file:
            commit = unpack_commit(file.read(PAGE_BYTES), os.fstat(file.fileno()).st_size)
        found += [commit] if commit is not None else []
    return found


def loads(step, folder=None):
    found, state = Checkpoint(folder, replicated=True).load()
    assert found == step, (found, step)
    if step:
        assert same(state, state_of(step)), "bit for bit"
        assert state["shared"].data_ptr() == state["weights"][3:5].data_ptr(), "what shared memory does so again"
        state["weights"].zero_()  # it may be changed


def each_pod_keeps_it_once(folder):
    saved(Checkpoint(None, replicated=True), 5, 6)
    sizes = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, commits()[0].end - commits()[0].data_offset)
    whole = sum(value.nbytes for name, value in state_of(5).items() if name not in ("shared", "words"))
    for first in range(0, len(sizes), PER_POD):
        assert sum(sizes[first : first + PER_POD]) < whole + PER_POD * 4096, sizes
        assert max(sizes) < whole / PER_POD + 4096, "in equal shares"
    loads(6)


def saved_for_the_next(folder):
    saved(Checkpoint(folder if "WITH_FOLDER" in os.environ else None, replicated=True), 5, 6)


def loaded_by_the_next(folder):
    loads(6, folder if "WITH_FOLDER" in os.environ else None)


def nothing_is_left(folder):
    loads(0)


def one_share_is_damaged_on_each_pod(folder):
    saved(Checkpoint(None, replicated=True), 5, 6)
    newest = max(commits(), key=lambda commit: commit.sequence)
    if dist.get_rank() // PER_POD == LOCAL:  # rank 0 of the first pod, rank 1 of the second
        with Path(f"{STORE}/rank-{LOCAL}.{newest.sequence % 2 ^ 1}").open("r+b") as file:
            file.seek((newest.data_offset + newest.end) // 2)
            (byte,) = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 4]))
    dist.barrier()
    loads(6)


def refusal(checkpoint, state):
    try:
        checkpoint.save(state, 5)
    except CheckpointError as error:
        return str(error)
    return ""


def ranks_that_differ_are_named(folder):
    checkpoint = Checkpoint(None, replicated=True)
    state = state_of(5)
    if dist.get_rank() == 2:
        state["one"][1] = 0.0
    other = 0 if dist.get_rank() == 2 else 2
    assert f"rank {other} has other values in 1 of 3 tensors" in refusal(checkpoint, state)
    state["more"] = torch.ones(dist.get_rank() + 1)
    assert "has other tensors than this rank" in refusal(checkpoint, state)
    assert commits() == [], "nothing is kept that is not what was saved"


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    globals()[sys.argv[1]](sys.argv[2])
    dist.destroy_process_group()
