"""``falcon_torch.dcp`` on several ranks, one function a story: distributed.py NAME FOLDER. Fails by AssertionError."""

import logging
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import falcon_torch
import falcon_torch.dcp
from falcon_torch import Checkpoint, CheckpointError

logging.basicConfig(format="%(message)s")
warnings.filterwarnings("ignore")
STORE = os.environ.get("FALCON_CHECKPOINT_DIR", "")


def fsdp():
    """Return a model in shards and its optimizer, some steps into training. 7 rows do not divide by the ranks."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 7), torch.nn.Tanh(), torch.nn.Linear(7, 64))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, optimizer


def train(model, optimizer, seed):
    torch.manual_seed(seed)
    optimizer.zero_grad()
    model(torch.randn(4, 64)).square().mean().backward()
    optimizer.step()


def state_of(model, optimizer):
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def whole(value):
    if isinstance(value, dict):
        return {name: whole(each) for name, each in value.items()}
    if isinstance(value, list):
        return [whole(each) for each in value]
    value = value.full_tensor() if isinstance(value, DTensor) else value
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return one == other


def restored(checkpoint):
    """Load into a model that has gone on from other weights; return the step and the whole state."""
    model, optimizer = fsdp()
    train(model, optimizer, 99)
    state = state_of(model, optimizer)
    reader = falcon_torch.dcp.Reader(checkpoint)
    if reader.step:
        dcp.load(state, storage_reader=reader)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return reader.step, whole(state_of(model, optimizer))


def saved(checkpoint, steps, asynchronously=False):
    """Train, save after each step and change the state at once; return the whole state of each step."""
    model, optimizer = fsdp()
    states = {}
    for step in steps:
        train(model, optimizer, step)
        state = state_of(model, optimizer)
        states[step] = whole(state)
        writer = falcon_torch.dcp.Writer(checkpoint, step)
        if asynchronously:
            dcp.async_save(state, storage_writer=writer).result()
        else:
            dcp.save(state, storage_writer=writer)
    train(model, optimizer, 98)
    checkpoint.wait()
    dist.barrier()
    return states


def fsdp2_in_the_same_layout(folder):
    checkpoint = Checkpoint(None)
    states = saved(checkpoint, (5, 6, 7))
    for _ in range(2):
        step, found = restored(Checkpoint(None))
        assert step == 7
        assert same(found, states[7])


def fsdp2_saved_asynchronously(folder):
    checkpoint = Checkpoint(folder)
    states = saved(checkpoint, (5, 6), asynchronously=True)
    step, found = restored(Checkpoint(folder))
    assert step == 6
    assert same(found, states[6])


def the_step_can_be_the_name(folder):
    writer = falcon_torch.dcp.Writer(Checkpoint(None))
    dcp.save({"x": torch.ones(3)}, checkpoint_id="runs/step-12", storage_writer=writer)
    assert falcon_torch.dcp.Reader(Checkpoint(None)).step == 12


def a_damaged_step_falls_back_to_the_one_before(folder):
    checkpoint = Checkpoint(None)
    states = saved(checkpoint, (5, 6))
    if dist.get_rank() == 1:
        with Path(f"{STORE}/rank-1.1").open("r+b") as file:
            where = bytes_of(f"{STORE}/rank-1.1")
            file.seek(where)
            (byte,) = file.read(1)
            file.seek(where)
            file.write(bytes([byte ^ 4]))
    dist.barrier()
    step, found = restored(Checkpoint(None))
    assert step == 5
    assert same(found, states[5])


def bytes_of(path):
    """Return a place within a buffer's data."""
    from falcon_torch.store.format import PAGE_BYTES, unpack_commit

    with Path(path).open("rb") as file:
        commit = unpack_commit(file.read(PAGE_BYTES), os.fstat(file.fileno()).st_size)
    return (commit.data_offset + commit.end) // 2


def a_file_that_was_cut_falls_back_to_the_one_before(folder):
    states = saved(Checkpoint(folder), (5, 6))
    if not dist.get_rank():
        os.truncate(f"{folder}/step-{6:012d}.rank-1-of-{dist.get_world_size()}.falcon", 3000)
    dist.barrier()
    step, found = restored(Checkpoint(folder))
    assert step == 5
    assert same(found, states[5])


def what_ranks_have_in_common_is_written_once(folder):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    base = torch.arange(1 << 18, dtype=torch.float32).view(512, 512)
    state = {
        "plain": base.clone(),
        "replicated": distribute_tensor(base + 1, mesh, [Replicate()]),
        "rows": distribute_tensor(base + 2, mesh, [Shard(0)]),
        "columns": distribute_tensor(base + 3, mesh, [Shard(1)]),
        "slice": (base + 4)[7:9],
        "transposed": (base + 5).t(),
        "half": (base + 6).bfloat16(),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "words": ["x", {"lr": 0.1}],
    }
    wanted = whole(state)
    checkpoint = Checkpoint(None)
    dcp.save(state, storage_writer=falcon_torch.dcp.Writer(checkpoint, 3))
    for value in state.values():
        if isinstance(value, torch.Tensor):
            (value.to_local() if isinstance(value, DTensor) else value).zero_()
    written = [None] * dist.get_world_size()
    dist.all_gather_object(written, checkpoint._anchor.commit().end - checkpoint._anchor.commit().data_offset)
    assert sum(written) < 5.6 * base.nbytes, "five whole tensors and a half, and no copy of a slice's whole storage"
    state["words"] = ["", {"lr": 0.0}]
    dcp.load(state, storage_reader=falcon_torch.dcp.Reader(Checkpoint(None)))
    for name, value in wanted.items():
        assert same(whole(state[name]), value), name


def saved_for_another_layout(folder):
    states = saved(Checkpoint(folder), (5, 6))
    if not dist.get_rank():
        torch.save(states, f"{folder}/wanted.pt")


def loaded_in_another_layout(folder):
    wanted = torch.load(f"{folder}/wanted.pt", weights_only=False)
    step, found = restored(Checkpoint(folder))
    assert step == 6
    assert same(found, wanted[6])
    states = saved(Checkpoint(folder), (8,))
    step, found = restored(Checkpoint(folder))
    assert step == 8
    assert same(found, states[8])


def loaded_in_another_layout_past_a_damaged_file(folder):
    wanted = torch.load(f"{folder}/wanted.pt", weights_only=False)
    if not dist.get_rank():
        (newest, *_) = Path(folder).glob(f"step-{6:012d}.rank-1-of-*.falcon")
        with newest.open("r+b") as file:
            file.seek(bytes_of(newest))
            file.write(b"\xff" * 9)
    dist.barrier()
    step, found = restored(Checkpoint(folder))
    assert step == 5
    assert same(found, wanted[5])


def what_cannot_be_done_says_so(folder):
    checkpoint = Checkpoint(None)
    refusals = []
    for call in (
        lambda: falcon_torch.dcp.Writer(Checkpoint(folder, when_behind="skip"), 1),
        lambda: dcp.save({"x": torch.ones(2)}, storage_writer=falcon_torch.dcp.Writer(checkpoint)),
        lambda: dcp.save({}, checkpoint_id="latest", storage_writer=falcon_torch.dcp.Writer(checkpoint)),
        lambda: dcp.load({"x": torch.ones(2)}, storage_reader=falcon_torch.dcp.Reader(checkpoint)),
    ):
        try:
            call()
        except (ValueError, CheckpointError, dcp.CheckpointException) as error:
            refusals.append(str(error))
    words = ("cannot leave a save out", "no step is given", "must end in the step", "there is no checkpoint here")
    assert len(refusals) == len(words), refusals
    assert all(word in refusal for word, refusal in zip(words, refusals, strict=True)), refusals


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    globals()[sys.argv[1]](sys.argv[2])
    dist.destroy_process_group()
