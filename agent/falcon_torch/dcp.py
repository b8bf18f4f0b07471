"""Connect ``torch.distributed.checkpoint`` to Falcon's store: FSDP2, DTensor and tensor parallel states.

    checkpoint = falcon_torch.Checkpoint("/checkpoints")
    reader = falcon_torch.dcp.Reader(checkpoint)
    if reader.step:
        dcp.load(state, storage_reader=reader)
    dcp.save(state, storage_writer=falcon_torch.dcp.Writer(checkpoint, step))

PyTorch plans which rank writes which piece, so that what ranks have in common is written once. Each rank's pieces are
an ordinary state of ``Checkpoint``; rank 0's holds the plan's metadata as well, with the writer of each piece. A save
costs training one copy, as ``Checkpoint.save`` does, and the plan's own messages.

When all ranks load in the layout in which they saved, most pieces lie in a rank's own memory. A piece that another rank
has written is broadcast by it. A job with another number of ranks reads the files of all ranks in the folder, if that
is where the newest step is.

All ranks of the job take part, in the default process group.
"""

from __future__ import annotations

import io
import logging
import os
import re
from dataclasses import replace
from typing import Any, Dict, List, Tuple

import torch
from torch.distributed.checkpoint import StorageReader, StorageWriter
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.storage import WriteResult

from falcon_torch.interruption import of_a_handler
from falcon_torch.ranks import broadcast, from_rank, gather, place
from falcon_torch.store.checkpoint import Checkpoint
from falcon_torch.store.format import CheckpointError
from falcon_torch.store.state import Part, dense
from falcon_torch.store.volume import Layout, layouts, read_file

if not hasattr(StorageWriter, "validate_checkpoint_id"):
    raise ImportError(f"falcon_torch.dcp needs PyTorch 2.6 or later, and this is {torch.__version__}")

Key = Tuple[str, Any]  # name in the flat state, and offset in the whole tensor, or None
_log = logging.getLogger("falcon_torch")
_STEP = re.compile(r"(\d+)/?$")


class Writer(StorageWriter, BlockingAsyncStager):  # type: ignore[misc]
    """Writes one step: ``dcp.save(state, storage_writer=Writer(checkpoint, step))``, or ``dcp.async_save``.

    Like PyTorch's own writer it copies the state for ``dcp.async_save`` itself. So it is asked once more, in the thread
    that trains, when the other thread has begun to save: there that thread holds, if the checkpoint was asked for.
    """

    def __init__(self, checkpoint: Checkpoint, step: int | None = None) -> None:
        """Prepare a save. ``step``: None where each save names it by ``checkpoint_id``, as in "step-100".

        Raises:
            ValueError: the checkpoint leaves saves out (``when_behind="skip"``), of which PyTorch would know nothing,
                or divides states among the ranks (``replicated``), as PyTorch does itself.
        """
        if checkpoint.replicated:
            raise ValueError("falcon_torch.dcp writes once what ranks have in common: leave out replicated=True")
        if checkpoint.skips:
            raise ValueError('falcon_torch.dcp cannot leave a save out: use Checkpoint(when_behind="wait")')
        super().__init__()
        self._checkpoint, self._step = checkpoint, step
        checkpoint.leaves_out = False  # PyTorch would take the step for saved

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Take the step from the end of a checkpoint's name. Raises ValueError where there is no number."""
        if checkpoint_id is not None:
            self._step = _step_of(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *_args: Any, **kwargs: Any) -> None:
        """Check what is asked for. Raises ValueError."""
        if self._step is None:
            raise ValueError('no step is given: Writer(checkpoint, step), or checkpoint_id="step-100"')
        if not kwargs.get("use_collectives", True):
            raise ValueError("falcon_torch.dcp needs the plan of all ranks: leave use_collectives as it is")
        if kwargs.get("rank", place().rank) != place().rank:
            raise ValueError("falcon_torch.dcp saves the state of all ranks: leave process_group out")

    @property
    def should_synchronize_after_execute(self) -> bool:
        """Return that ``synchronize_staging`` is to be called."""
        return True

    def synchronize_staging(self) -> None:
        """Hold the thread that trains, where Falcon has asked for the checkpoint that is being saved."""
        self._checkpoint.hold()

    def prepare_local_plan(self, plan: Any) -> Any:
        """Return the plan: nothing is to be added."""
        return plan

    def prepare_global_plan(self, plans: List[Any]) -> List[Any]:
        """Return the plans: nothing is to be added."""
        return plans

    def write_data(self, plan: Any, planner: Any) -> torch.futures.Future[List[WriteResult]]:
        """Save this rank's pieces. They are in the buffer when this returns.

        Raises:
            CheckpointError: they fit nowhere, or the planner is of an unknown kind.
        """
        items: Dict[Key, Any] = {}
        for item in plan.items:
            data = planner.resolve_data(item)
            items[_key(item.index)] = data.getvalue() if item.type == WriteItemType.BYTE_IO else _kept(data)
        # The plan's metadata is the same for all ranks, so one rank keeps it.
        metadata = _metadata_of(planner) if place().rank == 0 else None
        self._checkpoint.save({"pieces": items, "metadata": metadata}, int(self._step or 0))
        done: torch.futures.Future[List[WriteResult]] = torch.futures.Future()
        done.set_result([WriteResult(item.index, 0, place().rank) for item in plan.items])
        return done

    def finish(self, metadata: Any, results: List[List[WriteResult]]) -> None:
        """Do nothing: the step counts as soon as all ranks hold it."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Check whether a checkpoint's name ends in a step."""
        return _STEP.search(os.fspath(checkpoint_id)) is not None


class Reader(StorageReader):  # type: ignore[misc]
    """Reads the newest step that all ranks can load: ``dcp.load(state, storage_reader=reader)``.

    ``step``: the step that was found; 0 where there is none, and nothing to load.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Find the newest step. All ranks make a reader, before the first save."""
        self._checkpoint = checkpoint
        self._own: Dict[str, Any] | None = None
        self._layout: Layout | None = None  # of the files, where they are not this job's own
        self._writers: Dict[Any, int] = {}
        self.step = 0
        self._find()

    def _find(self) -> None:
        self.step, self._own = self._checkpoint.load()
        self._layout = None
        for layout in from_rank(0, self._candidates() if place().rank == 0 else None):
            generations = {each for share in gather(self._generations(layout)) for each in share}
            # Files of two generations may both be whole and still not be one state.
            if len(generations) == 1 and None not in generations:
                self.step, self._layout, self._own = layout.step, layout, None
                return

    def _candidates(self) -> List[Layout]:
        """Return the complete sets of files of other numbers of ranks that are newer than this job's own step."""
        folder = self._checkpoint.folder
        found = layouts(folder) if folder is not None else []
        return [each for each in found if each.step > self.step and each.world_size != place().world_size]

    def _generations(self, layout: Layout) -> List[int | None]:
        """Read this rank's share of another layout's files; return who wrote each, None for what cannot be used."""
        here = place()
        found: List[int | None] = []
        # The ranks share the files of the other layout among themselves, so that each is read once.
        for rank in range(here.rank, layout.world_size, here.world_size):
            try:
                commit, state = read_file(layout, rank, self._checkpoint.verify)
                found.append(commit.generation if _is_ours(state) else None)
            except (CheckpointError, OSError, ValueError) as error:
                if of_a_handler(error):
                    raise
                _log.warning("not loaded: %s", error)
                found.append(None)
        return found

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: the newest step is read, whatever the name."""

    def read_metadata(self, *_args: Any, **_options: Any) -> Any:
        """Return the metadata of the step that was found, with the rank that has written each piece.

        Raises:
            CheckpointError: there is none.
        """
        if self._own is None and self._layout is None:
            self._find()  # this reader has been used before
        state = self._own
        if self._layout is not None and place().rank == 0:
            _, state = read_file(self._layout, 0)
        # Every rank answers before any raises, or the others would wait in the exchange for ever.
        if not all(gather(self._layout is not None or _is_ours(state))):
            raise CheckpointError("there is no checkpoint here that falcon_torch.dcp has written")
        return from_rank(0, state["metadata"] if state is not None else None)

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool, *_args: Any, **kwargs: Any) -> None:
        """Take over which rank has written which piece."""
        self._writers = {_key(index): rank for index, rank in metadata.storage_data.items()}

    def prepare_local_plan(self, plan: Any) -> Any:
        """Return the plan: nothing is to be added."""
        return plan

    def prepare_global_plan(self, plans: List[Any]) -> List[Any]:
        """Return the plans: nothing is to be added."""
        return plans

    def read_data(self, plan: Any, planner: Any) -> torch.futures.Future[None]:
        """Fill the state. What the reader has mapped is let go of, so that the next save need not copy it.

        Raises:
            CheckpointError: a piece is not there.
        """
        wanted: Dict[Key, List[Any]] = {}
        for item in plan.items:
            wanted.setdefault(_key(item.storage_index), []).append(item)
        filling = _Filling(wanted, planner)
        if self._layout is not None:
            self._from_files(filling, self._layout)
        else:
            self._from_ranks(filling, self._own["pieces"] if self._own is not None else {})
        # The state has been filled: without these references the mapped memory can be written again.
        self._own = self._layout = None
        filling.check()
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        return done

    def _from_files(self, filling: _Filling, layout: Layout) -> None:
        # Each file is mapped once, whatever the number of pieces that are taken from it.
        by_rank: Dict[int, List[Key]] = {}
        for key in filling.wanted:
            by_rank.setdefault(self._writers[key], []).append(key)
        for rank, keys in by_rank.items():
            _, state = read_file(layout, rank)
            for key in keys:
                filling.fill(key, state["pieces"][key])

    def _from_ranks(self, filling: _Filling, own: Dict[Key, Any]) -> None:
        """Take what this rank holds itself, then what other ranks have written, each piece by its writer."""
        for key in filling.wanted:
            if key in own:
                filling.fill(key, own[key])
        for key, described in self._lacking(filling, own):
            value = self._received(key, own, described)
            if key in filling.wanted and key not in own:
                filling.fill(key, value)

    def _lacking(self, filling: _Filling, own: Dict[Key, Any]) -> List[Tuple[Key, Any]]:
        """Return the pieces that some rank lacks and another has, described, in the same order on all ranks."""
        lacking = {key for keys in gather([key for key in filling.wanted if key not in own]) for key in keys}
        shared = [key for key in self._writers if key in lacking]
        said: Dict[Key, Any] = {}
        for described in gather({key: _described(own[key]) for key in shared if key in own}):
            said.update(described)
        return [(key, said[key]) for key in shared if key in said]  # check() names the others

    def _received(self, key: Key, own: Dict[Key, Any], described: Any) -> Any:
        """Return a piece that some rank lacks. All ranks call it for a dense tensor."""
        if isinstance(described, _Shape):
            return _broadcast(self._writers[key], own.get(key), described)
        return described

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Accept every name: the newest step is read."""
        return True


class _Filling:
    """The state that is being loaded. An error waits until all pieces have passed, or other ranks would hang."""

    def __init__(self, wanted: Dict[Key, List[Any]], planner: Any) -> None:
        self.wanted = wanted
        self._planner = planner
        self._missing = set(wanted)
        self._error: Exception | None = None

    def fill(self, key: Key, value: Any) -> None:
        """Copy a piece to all places of the state that take something from it."""
        self._missing.discard(key)
        try:
            for item in self.wanted[key]:
                self._fill(item, value)
        except Exception as error:
            self._error = self._error or error

    def _fill(self, item: Any, value: Any) -> None:
        if item.type == LoadItemType.BYTE_IO:
            self._planner.load_bytes(item, io.BytesIO(value))
            return
        for dim, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths)):
            value = value.narrow(dim, offset, length)
        # The state was saved by the same plan or by another one; sizes show a wrong match before anything is
        # overwritten.
        target = self._planner.resolve_tensor(item).detach()
        if target.size() != value.size():
            raise CheckpointError(f"{item.storage_index}: {tuple(value.size())} cannot fill {tuple(target.size())}")
        target.copy_(value)
        self._planner.commit_tensor(item, target)

    def check(self) -> None:
        """Raise the first error, or CheckpointError for a piece that no rank has."""
        if self._error is not None:
            raise self._error
        if self._missing:
            raise CheckpointError(f"no rank has the piece {min(self._missing, key=str)}")


class _Shape:
    """What a rank must know of a tensor before it is broadcast."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype, self.shape, self.count = tensor.dtype, tuple(tensor.shape), tensor.numel() * tensor.element_size()


def _described(value: Any) -> Any:
    """Return the shape of a dense tensor, which is broadcast next; anything else is small, and sent as it is."""
    return _Shape(value) if dense(value) else value


def _broadcast(rank: int, own: Any, shape: _Shape) -> torch.Tensor:
    """Return a tensor that one rank has. All ranks call it."""
    content = Part(own).content if own is not None else torch.empty(shape.count, dtype=torch.uint8, device="cpu")
    return broadcast(rank, content).view(shape.dtype).view(shape.shape)


def _kept(data: torch.Tensor) -> Any:
    return Part(data) if dense(data) else data


def _key(index: Any) -> Key:
    return index.fqn, None if index.offset is None else tuple(index.offset)


def _is_ours(state: Any) -> bool:
    return isinstance(state, dict) and state.keys() == {"pieces", "metadata"}


def _metadata_of(planner: Any) -> Any:
    """Return the metadata of the plan that rank 0 has made, with the writer of each piece."""
    try:
        plans, metadata = planner.global_plan, planner.metadata
    except AttributeError as error:
        raise CheckpointError(
            f"the planner {type(planner).__name__} keeps no plan of all ranks: derive it from DefaultSavePlanner"
        ) from error
    return replace(metadata, storage_data={item.index: rank for rank, plan in enumerate(plans) for item in plan.items})


def _step_of(checkpoint_id: str | os.PathLike[str]) -> int:
    found = _STEP.search(os.fspath(checkpoint_id))
    if found is None:
        raise ValueError(f'checkpoint_id {os.fspath(checkpoint_id)!r} must end in the step, as in "step-100"')
    return int(found[1])
