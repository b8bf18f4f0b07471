"""Save and load checkpoints: ``save`` costs training one copy, ``load`` finds the nearest state that all ranks have.

A save goes into one of the rank's two buffers in the pod's memory. Behind training, a thread adds checksums and copies
the buffer to the folder. The next save takes the other buffer; the save after that needs the first again, and so waits
until the thread has done with it. A state that does not fit is written to the folder at once, and so are all where
there is no store of Falcon's.

As long as ranks exchange anything between two saves, no rank is ahead of another by more than one save, so that both
buffers of all ranks always have a step in common. A step is known by its number **and** the generation that wrote it:
what a rank saved alone before a failure is not mixed with what the others save after it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from functools import partial
from typing import Any, Dict, List, Tuple

from falcon_torch.agent_file import AgentFile
from falcon_torch.guard import Guard
from falcon_torch.interruption import of_a_handler
from falcon_torch.ranks import Place, gather, is_elastic, place
from falcon_torch.requests import FILE, Demand, loads_before_ns
from falcon_torch.store.buffers import Buffer, BufferUnusableError, Store
from falcon_torch.store.format import (
    FROM_FOLDER,
    FROM_MEMORY,
    FROM_REPLICA,
    NOTHING,
    CheckpointError,
    Commit,
    is_verified,
)
from falcon_torch.store.mapped_copy import Copier
from falcon_torch.store.replicas import Share, Whole, compare
from falcon_torch.store.sources import Agreed, Key, Offer, Read, Source, agree, offer, read_newest, read_step
from falcon_torch.store.state import Frozen, freeze
from falcon_torch.store.volume import Volume, mapped

FOLDER_VARIABLE = "FALCON_CHECKPOINT_DIR"
BEHIND_NICE = 5  # of the threads behind training: a third of the weight of training's own, where both want a core
BEHIND_SECONDS = 0.001  # after which they begin
_log = logging.getLogger("falcon_torch")


class Counts:
    """What a rank's checkpoints have come to since its process began."""

    def __init__(self) -> None:
        self.saved = 0
        self.skipped = 0  # since the save before the last was on its way to the folder, or the last to another pod
        self.waited_seconds = 0.0  # for that reason, where ``when_behind`` is "wait", or for the copies in other pods
        self.in_folder = 0  # files that are complete
        self.folder_failures = 0


class Checkpoint:
    """The checkpoints of a job.

    Args:
        folder: a folder that outlives the pod, the same for all ranks; None: the pod's memory alone, which is lost
            with the pod.
        replicated: all ranks have the same state, as in pure data parallelism. Each pod then keeps it once, in shares
            of its ranks, and what is lost with one pod comes from another. The first save compares all bytes.
        when_behind: what a save does that needs a buffer of which the copy to the folder is not done: "wait" for it, or
            "skip", which leaves this checkpoint out on all ranks, and takes a collective call in each save.
        verify: compare every byte with its checksum when a checkpoint is loaded. It takes a second for one or two GiB.
            False: only index and records are compared.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        replicated: bool = False,
        when_behind: str = "wait",
        verify: bool = True,
    ) -> None:
        """Find the store. Raises ValueError where there is neither a store nor a folder."""
        if when_behind not in ("wait", "skip"):
            raise ValueError(f'when_behind={when_behind!r}: write "wait" or "skip"')
        self.counts = Counts()
        self.folder = None if folder is None else os.fspath(folder)
        self.skips = when_behind == "skip"
        self.leaves_out = True  # saves of which the copies before take long; all ranks have the same value
        self.verify = verify
        self._copier = Copier()
        self._volume: Volume | None = None
        self._store = _open_store(place())
        if self._store is None and self.folder is None:
            raise ValueError(
                "no folder is given and Falcon keeps no checkpoints here: set spec.checkpoint.memory, or name a folder"
            )
        self._share = Share.of_this_rank(place()) if replicated else None
        self._compared = not replicated
        # Of shares that all pods have, the first pod's go to the folder.
        self._writes_files = self._share is None or place().rank < self._share.of
        named = os.path.abspath(self.folder) if self.folder is not None and self._writes_files else ""
        for buffer in self._store.buffers if self._store is not None else []:
            buffer.name_folder(named, *self._file_layout(place()))
            if replicated:
                buffer.note(replicated=True)
        self._anchor: Buffer | None = None  # holds what all ranks may have to go back to: it is not overwritten next
        self._behind: Dict[str, threading.Thread] = {}  # by the buffer's path
        self._sequence = 0
        self._generation = place().generation
        self._warned = False
        self._guard: Guard | None = None  # made by the first load or save, for the same reason as ``_demand``
        self._guarded = False
        self._demand: Demand | None = None  # made by the first question: the process group is there by then

    # -- saving ------------------------------------------------------------------------------------------------------

    def save(self, state: Any, step: int) -> bool:
        """Save a state: dicts, lists, tuples, tensors, and all else that can be pickled. All ranks save the same steps.

        What the caller changes after it has returned is not in the checkpoint.

        Returns:
            False for a checkpoint that was left out, since the last but one was still being written; or, without a
            folder, since the copies of the last in other pods take longer than a save waits.

        Raises:
            CheckpointError: the state cannot be pickled, or fits nowhere; or it is said to be replicated, and is not;
                or the launcher is that of ``falcon_torch.elastic``.
            OSError: it does not fit into memory, and the folder cannot be written.
        """
        _refuse_changing_group()
        began = time.perf_counter()
        frozen = self._frozen(state)
        buffer = self._next_buffer()
        needed = 0 if buffer is None else buffer.needed(frozen)
        fits = buffer is not None and needed <= buffer.capacity
        # All ranks skip, or none: a step that some ranks lack cannot be loaded.
        if self.skips and any(gather(self._is_behind(buffer))):
            self.counts.skipped += 1
            return False
        if self._demand is not None:
            self._demand.begin()
        guard = self._guarding()
        if self._is_left_out(guard):
            self.counts.skipped += 1
            return False
        self._sequence += 1
        if buffer is not None and fits:
            self._wait_for(buffer)
            commit = buffer.write(frozen, self._copier, began=began, **self._identity(step))
            self._anchor = buffer
            self._start_behind(buffer, commit, self._open_volume() if self._writes_files else None)
            if guard is not None:
                guard.watch(commit, partial(self._lacks_checksums, buffer, commit))
        else:
            self._write_through(frozen, step, buffer, needed)
        self.counts.saved += 1
        # Falcon waits for this checkpoint with a restart, so it is complete everywhere when ``save`` returns.
        if self._demand is not None and self._demand.saving:
            self.wait()
            self._demand.end()
        return True

    def _is_left_out(self, guard: Guard | None) -> bool:
        """Wait until the checkpoint before is copied; return whether all ranks leave this one out (``guard``)."""
        if guard is None:
            return False
        asked = self._demand is not None and self._demand.saving
        waited = guard.wait(may_leave_out=self.leaves_out and self.folder is None and not asked)
        self.counts.waited_seconds += waited.seconds
        return not waited.saves

    def _frozen(self, state: Any) -> Frozen:
        """Lay out what this rank keeps of a state. Raises CheckpointError."""
        frozen = freeze(state)
        if self._share is None:
            return frozen
        if not self._compared:
            compare(frozen)
            self._compared = True
        return freeze(self._share.cut(frozen))

    def wanted(self) -> bool:
        """Check whether Falcon wants a checkpoint of this step: it plans a restart, or a process soon reaches a limit.

        All ranks call it once in each step, after the step and before ``save``, and get the same answer. The ``save``
        that follows waits until the folder has the checkpoint, and before a restart then for the restart, for ten
        seconds at most: what a rank would train meanwhile would be done again. Without Falcon the answer is False.
        """
        _refuse_changing_group()
        if self._demand is None:
            self._demand = Demand(AgentFile.of_this_pod(FILE), place())
            for buffer in self._store.buffers if self._store is not None and self._demand.listens else []:
                buffer.note(listens=True)
        return self._demand.is_due()

    def hold(self) -> None:
        """Wait where another thread saves a checkpoint that was asked for: for it, and then for the restart."""
        if self._demand is not None and self._demand.saving:
            self._demand.hold()

    def wait(self) -> None:
        """Wait until everything that was saved has its checksums, and is in the folder or has failed to get there."""
        for thread in list(self._behind.values()):
            thread.join()

    def _identity(self, step: int) -> Dict[str, int]:
        here = place()
        return {
            "generation": self._generation,
            "rank": here.rank,
            "world_size": here.world_size,
            "step": step,
            "sequence": self._sequence,
        }

    def _next_buffer(self) -> Buffer | None:
        """Return the buffer that does not hold the newest whole checkpoint; None without a store."""
        if self._store is None:
            return None
        self._sequence = max([self._sequence, *(held.sequence for held in self._held())])
        # After a load this is what was loaded, which need not be the newest that this rank has.
        if self._anchor is not None:
            return next(buffer for buffer in self._store.buffers if buffer is not self._anchor)
        return min(self._store.buffers, key=_sequence)

    def _held(self) -> List[Commit]:
        buffers = self._store.buffers if self._store is not None else []
        return [commit for commit in (buffer.commit() for buffer in buffers) if commit is not None]

    def _is_behind(self, buffer: Buffer | None) -> bool:
        thread = self._behind.get(buffer.path) if buffer is not None else None
        return thread is not None and thread.is_alive()

    def _lacks_checksums(self, buffer: Buffer, commit: Commit) -> bool:
        """Check whether the checksums of a checkpoint are still being made."""
        return self._is_behind(buffer) and not is_verified(buffer.page(), commit)

    def _wait_for(self, buffer: Buffer) -> None:
        thread = self._behind.get(buffer.path)
        if thread is not None:
            began = time.monotonic()
            thread.join()
            self.counts.waited_seconds += time.monotonic() - began

    def _start_behind(self, buffer: Buffer, commit: Commit, volume: Volume | None) -> None:
        # No daemon: an interpreter that ends waits for it, so that a job's last checkpoint is in the folder.
        thread = threading.Thread(
            target=self._finish,
            args=(buffer, commit, volume),
            name="falcon-checkpoint",
        )
        self._behind[buffer.path] = thread
        thread.start()

    def _finish(self, buffer: Buffer, commit: Commit, volume: Volume | None) -> None:
        """Add what training does not wait for. Training goes on whatever happens here."""
        _give_way()
        buffer.add_checksums(commit)
        if volume is None:
            return
        try:
            volume.copy(buffer.view, commit)
            buffer.note(in_folder=commit.sequence)
            self.counts.in_folder += 1
        except OSError as error:
            self.counts.folder_failures += 1
            _log.warning("%s is in memory alone: %s: %s", commit.name, volume.folder, error)

    def _write_through(self, frozen: Frozen, step: int, buffer: Buffer | None, needed: int) -> None:
        if buffer is not None:
            remedy = f"raise spec.checkpoint.memory so that each of two buffers a rank has {needed} bytes"
            what = f"a checkpoint of {needed} bytes does not fit into a buffer of {buffer.capacity} bytes"
            if self.folder is None:
                raise CheckpointError(f"{what}, and no folder is given: {remedy}")
            # Once: the size does not change from save to save, and a line each would fill the log.
            if not self._warned:
                self._warned = True
                _log.warning("%s and is written to %s while training waits: %s", what, self.folder, remedy)
        volume = self._open_volume() if self._writes_files else None
        if volume is not None:
            volume.write(frozen, **self._identity(step))
            self.counts.in_folder += 1

    def _open_volume(self) -> Volume | None:
        """Return the folder's files; None without a folder. The folder cannot be opened yet when it is not mounted."""
        if self._volume is None and self.folder is not None:
            try:
                self._volume = Volume(self.folder, *self._file_layout(place()))
            except OSError as error:
                if self._store is None or of_a_handler(error):
                    raise
                _log.warning("checkpoints stay in memory alone: %s cannot be opened", self.folder, exc_info=True)
        return self._volume

    @property
    def replicated(self) -> bool:
        """Return whether all ranks have the same state."""
        return self._share is not None

    def _file_layout(self, here: Place) -> Tuple[int, int]:
        """Return the numbers in the names of this rank's files: which part of a state, and of how many."""
        return (here.rank, here.world_size) if self._share is None else self._share

    # -- loading -----------------------------------------------------------------------------------------------------

    def load(self) -> Tuple[int, Any]:
        """Return the newest step that every rank has, and this rank's state of it; 0 and None where there is none.

        All ranks call it, once, before the first save. The tensors are on the CPU. Those that come from memory are
        views: they may be changed, and what is stored stays as it is.

        Where Falcon has restarted the job for a number that stayed NaN, what was saved after the last finite value is
        left out, and removed when all ranks have loaded an older step. Where there is none, nothing is left out.

        Raises:
            CheckpointError: the state is whole and cannot be unpickled; or the launcher is that of
                ``falcon_torch.elastic``.
        """
        _refuse_changing_group()
        began, here = time.perf_counter(), place()
        found = self._sources(here)
        before_ns = loads_before_ns(here.generation)
        spoilt = [source for source in found if before_ns and source.commit.unix_ns >= before_ns]
        sound = [source for source in found if source not in spoilt]
        loaded = self._load(sound, found, here, began)
        # All ranks agree that there is no step, and have the same order: they repeat it together.
        if loaded is None and before_ns:
            _log.warning("no checkpoint is as old as Falcon asks for: the newest is loaded")
            loaded = self._load(found, found, here, began)
        elif loaded is not None:
            self._remove(spoilt)
        if loaded is None:
            self._say_loaded(here, 0, NOTHING, began)
            return 0, None
        return loaded

    def _load(self, sources: List[Source], found: List[Source], here: Place, began: float) -> Tuple[int, Any] | None:
        """Return the newest step of these sources that every rank has, and this rank's state of it; None without one.

        ``found``: all that this rank has.
        """
        self._generation = here.generation
        self._anchor = None
        self._guarding()  # before the exchange below: after it, all ranks have theirs
        read = Read()
        if self._share is None:
            sources, read = read_newest(sources, verify=self.verify)
        while True:
            # Each rank offers what it has; the newest step that all of them have is agreed on.
            agreed = self._agreed(offer(sources, found, read))
            key = agreed.key
            if key is None:
                return None
            if read.key != key:
                read = read_step(sources, key, verify=self.verify)
            whole, state = self._whole(agreed, read, here)
            if whole:
                self._begin_from(read.source)
                self._say_loaded(here, key[0], _place_of(read.source), began)
                return key[0], state
            # A rank could not read this step after all: leave it out and agree again.
            sources = [source for source in sources if source.key != key]

    def _remove(self, spoilt: List[Source]) -> None:
        """Remove checkpoints that are to be left out for ever: newer steps would else push sound files out."""
        # The numbers of saves go on: a holder of copies takes a smaller one for an older checkpoint.
        self._sequence = max([self._sequence, *(source.commit.sequence for source in spoilt)])
        for source in spoilt:
            if source.buffer is not None:
                source.buffer.clear()
                continue
            try:
                os.unlink(source.where)
            except OSError as error:
                if of_a_handler(error):
                    raise
                if not isinstance(error, FileNotFoundError):  # ranks with the same share have the same file
                    _log.warning("%s stays in %s: %s", source.commit.name, source.where, error)

    def _whole(self, agreed: Agreed, read: Read, here: Place) -> Tuple[bool, Any]:
        """Return whether all ranks have read the step on which they agreed, and this rank's state of it."""
        if self._share is None:
            return agreed.is_read or all(gather(read.source is not None)), read.state
        near = read.source is not None and read.source.buffer is not None
        state = self._put_together(agreed.key or (0, 0), here, read.state, near=near)
        return state is not None, state

    def _put_together(self, key: Key, here: Place, share: Any, *, near: bool) -> Any:
        """Return the whole state from the shares of all ranks; None where one of them is nowhere to be had."""
        made = Whole(key, self._share or Share(0, 1), here)
        made.take(share, os.environ.get(FOLDER_VARIABLE, "") if near else "")
        return made.state()

    def _say_loaded(self, here: Place, step: int, source: int, began: float) -> None:
        seconds = time.perf_counter() - began
        for buffer in self._store.buffers if self._store is not None else []:
            buffer.say_loaded(generation=here.generation, rank=here.rank, step=step, source=source, seconds=seconds)

    def _begin_from(self, chosen: Source | None) -> None:
        """Keep what was loaded until the next checkpoint is complete."""
        self._anchor = None if chosen is None else chosen.buffer
        guard = self._guarding()
        if guard is not None and chosen is not None:
            self._forget_after(chosen)
            # A rank that was killed right after the save has not got to the checksums, without which nothing is copied.
            if chosen.buffer is not None and not is_verified(chosen.buffer.page(), chosen.commit):
                self._start_behind(chosen.buffer, chosen.commit, None)
            unready = None if chosen.buffer is None else partial(self._lacks_checksums, chosen.buffer, chosen.commit)
            guard.watch(chosen.commit, unready)

    def _forget_after(self, chosen: Source) -> None:
        """Clear what this rank saved after the step from which all go on: its copy would take that step's place."""
        for buffer in self._store.buffers if self._store is not None and chosen.buffer is not None else []:
            commit = buffer.commit()
            if commit is not None and commit.sequence > chosen.commit.sequence:
                self._sequence = max(self._sequence, commit.sequence)
                buffer.clear()

    def _guarding(self) -> Guard | None:
        """Return what waits for copies in other pods; None where there are none, or no store of Falcon's."""
        if not self._guarded:
            self._guarded = True
            alone = self._store is not None and self._share is None  # other pods have what all ranks have
            self._guard = Guard.of_this_pod(place()) if alone else None
        return self._guard

    def _agreed(self, own: Offer) -> Agreed:
        """Return the newest step that every rank has, or of which some pod has each share. All ranks call it."""
        offers = gather(own)
        agreed = agree(offers, len(offers) if self._share is None else self._share.of)
        # A holder of what an earlier life wrote cannot mistake it for what this one is going to write.
        self._generation = max(self._generation, 1 + agreed.generation)
        return agreed

    def _sources(self, here: Place) -> List[Source]:
        """Return this rank's checkpoints, the nearest first."""
        found = []
        for buffer in self._store.buffers if self._store is not None else []:
            commit = buffer.commit()
            if commit is not None:
                found.append(Source(commit, buffer.path, buffer.private, buffer))
        volume = self._open_volume()
        for path, commit in volume.found() if volume is not None else []:
            found.append(Source(commit, path, lambda path=path: mapped(path)))  # type: ignore[misc]
        if self._share is not None:
            return [each for each in found if each.commit.rank % self._share.of == self._share.number]
        return [each for each in found if (each.commit.rank, each.commit.world_size) == (here.rank, here.world_size)]


def _refuse_changing_group() -> None:
    """Raise CheckpointError where ranks come and go: each would have its own part of a step, and calls would break."""
    if is_elastic():
        raise CheckpointError(
            "falcon_torch.Checkpoint needs ranks that stay the same, and those of falcon_torch.elastic change: "
            "let one rank save by torch.save between two steps, in less time than the launcher's --patience"
        )


def _give_way() -> None:
    """Let the training thread go first, which waits to hear that this one has begun, and let it have more of a core.

    On Linux a nice value is a thread's own.
    """
    with contextlib.suppress(OSError):
        os.nice(BEHIND_NICE)
    time.sleep(BEHIND_SECONDS)


def _place_of(chosen: Source | None) -> int:
    """Return where a rank's own part of what it loaded was."""
    if chosen is None:
        return FROM_REPLICA
    return FROM_FOLDER if chosen.buffer is None else FROM_MEMORY


def _sequence(buffer: Buffer) -> int:
    commit = buffer.commit()
    return -1 if commit is None else commit.sequence


def _open_store(here: Place) -> Store | None:
    """Open this rank's buffers; None, with a warning where Falcon should have made some, if there are none."""
    folder = os.environ.get(FOLDER_VARIABLE, "")
    if not folder:
        return None
    if here.local_rank is None:
        _log.warning("no checkpoints are kept in memory: LOCAL_RANK, which the launcher sets, is not known")
        return None
    try:
        return Store(folder, here.local_rank)
    except BufferUnusableError as error:
        _log.warning("no checkpoints are kept in memory: %s", error)
        return None
