"""Train a model that ``fully_shard`` (FSDP2) has sharded, in a group whose processes come and go.

    def build(mesh):
        model = Net()
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, torch.optim.AdamW(model.parameters())

    group = falcon_torch.elastic.sharding.ShardedGroup(build, micro_batches=12)
    for step in group.steps(1000):
        for number in group.micro_batches():
            (loss_of(group.model, step, number) / 3).backward()  # 4 ranks, 3 each

``micro_batches()`` clears the gradients, yields the numbers of this rank's micro-batches, makes the optimizer's step,
and gives a copy of this rank's shard to the next rank. A rank that is lost takes its shard with it; the next one has
the copy. So the others divide the state of the step's begin among themselves, ``build`` is called again for as many
ranks as there are, and the step begins again with its whole global batch. It is over when all ranks have the copies of
its result, and nothing of it is done again then. A newcomer gets its part of the state in the same way.

Without the launcher of this package the group is that of the environment, no copies are made, and a lost rank is an
error, as in any other program.
"""

from __future__ import annotations

import logging
import os
from typing import Any, Callable, Dict, Iterator, List, Tuple, TypeVar

import torch

from falcon_torch.elastic.attendance import Attendance, NewGroup
from falcon_torch.elastic.dealing import even
from falcon_torch.elastic.member import ENDED_EXIT, STATE_LOST_EXIT, Member
from falcon_torch.elastic.member_state import send
from falcon_torch.elastic.process_group import BrokenError, FixedProcessGroup, ProcessGroup
from falcon_torch.elastic.sharding.collectives import Collectives
from falcon_torch.elastic.sharding.shards import Entry, Layout, Record, Records, copy_to_next, gather
from falcon_torch.elastic.sharding.training import Build, Training
from falcon_torch.elastic.sharding.versions import NO_STEP, Held, Progress, Source, Version, choose

LOOK_SECONDS = 0.05  # between two looks whether a call is to be given up
SILENCE_SECONDS = 10.0  # that a call may take once the group is to be renewed, where no member has seen it break
T = TypeVar("T")
_SEEDS = (1 << 63) - 1
_log = logging.getLogger("falcon_torch")


class ShardedGroup(Member):
    """This rank's part in the training. All processes make it at the same place of their program.

    Args:
        build: makes the model, its optimizer and whatever else has a state (a scheduler), and returns them in a tuple.
            It gets the mesh for ``fully_shard``, and is called again for each group. The random numbers that it draws
            are those of the first rank, and each call draws the same.
        micro_batches: of a step, of all ranks together.
        step: the first to be computed. That of the first rank counts.
        clip_norm: the greatest norm of the whole gradient; None: gradients are not clipped.
        state: what ``state()`` has returned, on all ranks, with the step in which it was; None: that of ``build``.
        timeout_seconds: after which a collective call fails though no process is known to be lost; 30 minutes if it is
            given neither here nor to ``init_process_group``.

    ``model``, ``optimizer`` and ``others`` are what ``build`` has made for the present group. ``computed`` has the
    micro-batches of the last step that this rank has computed.
    """

    def __init__(
        self,
        build: Build,
        *,
        micro_batches: int,
        step: int = 0,
        clip_norm: float | None = None,
        state: Dict[str, Any] | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        """Wait for the first group, or for a place in the present one, and build the model.

        Raises ValueError for a model that the group cannot exchange, RefusedError where it has no place here.
        """
        wanted = int(os.environ.get("WORLD_SIZE", "1"))
        if micro_batches < wanted:
            raise ValueError(f"micro_batches={micro_batches}: each of {wanted} ranks needs at least one")
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(f"clip_norm={clip_norm}: a norm is above 0; leave it out to clip nothing")
        self._build, self._total, self._clip_norm = build, micro_batches, clip_norm
        super().__init__(NO_STEP, timeout_seconds)
        self._first = state["step"] if state else step
        self._loaded = state
        self._seed = torch.initial_seed() & _SEEDS
        self.computed: List[int] = []
        self._records: Records = {}
        self._version = Version(NO_STEP, 0, 0)  # with which this group goes on
        self._training: Training
        self._calls: Collectives
        self._begin()

    @property
    def model(self) -> torch.nn.Module:
        """Return the model of the present group."""
        return self._training.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer of the present group's model."""
        return self._training.optimizer

    @property
    def others(self) -> Tuple[Any, ...]:
        """Return what else ``build`` has made for the present group."""
        return self._training.others

    # -- the loop ----------------------------------------------------------------------------------------------------

    def micro_batches(self) -> Iterator[int]:
        """Yield the numbers of this rank's micro-batches; at the end the optimizer's step is made, and safe.

        Where a rank is lost the numbers begin again, and what was computed before does not count.
        """
        self._keep_changes()
        self.computed = []
        while not self._is_applied:
            self.computed = []
            yield from self._passes()
            try:
                is_wanted = self._apply()
            except BrokenError as error:
                self._meet(error)
            else:
                if is_wanted:
                    self._meet(None)
        self._done = True

    def state(self) -> Dict[str, Any] | None:
        """Return the whole state on the rank of index 0, and None on the others: to be saved, and passed as ``state``.

        All ranks call it in the same step, after ``micro_batches()``. The rank of index 0 needs the memory of all.

        Raises RuntimeError elsewhere in the loop.
        """
        if not self._done or self._over:
            raise RuntimeError("state() is for the end of a step: call it after the loop over micro_batches()")
        self._keep_changes()
        return self._unbroken(self._collect)

    @property
    def _is_applied(self) -> bool:
        """Return whether the group goes on with the result of the step in which the script is."""
        return self._version.step > self.step

    def _passes(self) -> Iterator[int]:
        own = even(self._total, self.size, self.index)
        most = len(even(self._total, self.size, 0))
        self._calls.begin(repeats=len(own) < most)
        for number in own:
            yield number
            self._calls.end_pass()
            if self._calls.broken is not None:
                return
            self.computed.append(number)

    def _apply(self) -> bool:
        """Finish the gradients, make the optimizer's step, and share its result; return what ``_share`` returns.

        Raises BrokenError.
        """
        if self._calls.broken is not None:
            raise self._calls.broken
        if len(self.computed) < len(even(self._total, self.size, 0)):
            self._calls.repeat()
        self._training.divide_gradients(float(self._group.wanted))
        together = torch.tensor([float(len(self.computed)), self._training.squares()], dtype=torch.double)
        self._group.sum(together)
        count, squares = together.tolist()
        if int(count) != self._total:
            raise RuntimeError(f"{int(count)} micro-batches in step {self.step}, not {self._total}")
        if self._clip_norm is not None:
            self._training.divide_gradients(max(1.0, (squares**0.5 + 1e-6) / self._clip_norm))
        self._training.optimizer.step()
        is_wanted = self._share(Version(self.step + 1, self.number, self.size))
        self._attempts = 0
        return is_wanted

    # -- versions ----------------------------------------------------------------------------------------------------

    def _share(self, version: Version) -> bool:
        """Make a version that all members have; return whether one of them wants to meet. Raises BrokenError."""
        training, attendance = self._training, self._attendance
        wants = torch.zeros(1)
        if attendance is not None:
            layout, own = training.layout(), training.own_shard()
            shards = {self.index: own}
            if self.size > 1:
                shards[(self.index - 1) % self.size] = copy_to_next(self._group, layout, own, self.size, self.index)
            # From here on a group may go on with it, although no member knows that all have it.
            self._records[version] = Record(layout, shards, training.small())
            wants += attendance.is_over(self.number)
            self._group.sum(wants)
            self._records = {version: self._records[version]}
        self._version, self._loaded = version, None
        return bool(wants.item())

    def _keep_changes(self) -> None:
        """Keep what the script has changed behind a step, such as the learning rate."""
        if self._version in self._records:
            self._records[self._version] = self._records[self._version]._replace(small=self._training.small())

    def _collect(self) -> Dict[str, Any] | None:
        """Let the first member have the whole state. Raises BrokenError."""
        training = self._training
        whole: Dict[str, Dict[str, torch.Tensor]] = {}
        layout, shards = training.layout(), {self.index: training.own_shard()}

        def keep(entry: Entry, tensor: torch.Tensor) -> None:
            if self.index == 0:
                whole.setdefault(entry.parameter, {})[entry.key] = tensor

        gather(self._group, layout, self.size, range(self.size), self.index, shards, keep)
        self._group.sum(torch.zeros(1))
        return {"step": self._version.step, "tensors": whole, "small": training.small()} if self.index == 0 else None

    def _unbroken(self, call: Callable[[], T]) -> T:
        """Make calls until none of them breaks; return what the last one returned."""
        while True:
            try:
                return call()
            except BrokenError as error:
                self._meet(error)

    # -- a new group -------------------------------------------------------------------------------------------------

    def _listen(self, group: ProcessGroup, attendance: Attendance) -> None:
        def is_broken() -> bool:
            # A newcomer, too, lets the group be renewed: members finish the step first.
            if not attendance.is_over(self.number):
                return False
            return group.waited_seconds() > SILENCE_SECONDS or group.is_announced(self.number)

        group.listen(is_broken, LOOK_SECONDS)

    def _begin_fixed(self, group: FixedProcessGroup) -> None:
        group.begin_alone()
        self.size, self.index = group.size, group.index
        facts = torch.tensor([self._first, self._seed])
        group.broadcast(facts, 0)
        self.step, self._seed = facts.tolist()
        self._training, self._calls = self._built(self.size, self.index, self._loaded)
        self._share(Version(self.step, 0, self.size))

    def _end_together(self) -> None:
        self._unbroken(lambda: self._group.sum(torch.zeros(1)))

    def _has_state(self) -> bool:
        return bool(self._records)

    def _facts(self) -> List[Any]:
        held = tuple(Held(version, tuple(record.shards)) for version, record in self._records.items())
        return list(Progress(self.step, self._over, self._first, self._seed, held))

    def _see_broken(self, group: ProcessGroup) -> None:
        group.announce_break(self.number)

    def _take_over(self, new: NewGroup) -> None:
        """Build the model for a group, and take this member's part of the state. Raises BrokenError."""
        members = [Progress.read(each) for each in new.progress]
        try:
            source = choose(members)
        except ValueError as error:
            self._go_without_state(members, error)
            return
        size, index = len(new.handles), new.position
        if source is None:
            self._seed = members[0].seed
            training, calls = self._built(size, index, self._loaded)
            self.step = step = members[0].first
        else:
            training, calls = self._built_from(source, members, size, index)
            own = members[source.lead if index in source.newcomers else index]
            self.step, self._over, step = own.step, own.over, source.version.step
        self._training, self._calls = training, calls
        self.size, self.index = size, index
        self._share(Version(step, new.number, size))

    def _built_from(
        self, source: Source, members: List[Progress], size: int, index: int
    ) -> Tuple[Training, Collectives]:
        """Build the model with this member's part of the state that the source holds. Raises BrokenError."""
        layout, small = self._layout_and_small(source, index)
        self._seed = members[source.lead].seed
        training, calls = self._built(size, index, None)
        shards = self._records[source.version].shards if source.version in self._records else {}
        gather(self._group, layout, source.version.size, source.holders, index, shards, training.load)
        training.load_small(small)
        return training, calls

    def _built(self, size: int, index: int, state: Dict[str, Any] | None) -> Tuple[Training, Collectives]:
        """Build the model for a group, and load a whole state, if there is one."""
        training = Training(self._build, self._seed, size, index)
        if state is not None:
            training.load_whole(state)
        return training, Collectives(self._group, training.model)

    def _layout_and_small(self, source: Source, index: int) -> Tuple[Layout, Dict[str, Any]]:
        """Return the layout of the state, and what is not cut: this member's own, or for newcomers the lead's."""
        of_step = [self._records[version] for version in sorted(self._records) if version.step == source.version.step]
        facts: Any = None
        if source.newcomers:
            state = [list(map(tuple, of_step[-1].layout)), of_step[-1].small] if index == source.lead else None
            facts = send(self._group, source.lead, index, state, takes=not of_step)
        if of_step:
            return of_step[-1].layout, of_step[-1].small
        layout, small = facts
        return tuple(Entry(*fields) for fields in layout), small

    def _go_without_state(self, members: List[Progress], error: ValueError) -> None:
        """Let a member whose training is over end without the others, who have ended; raise SystemExit in any other."""
        if not any(member.over for member in members):
            _log.error("%s: all ranks have to begin from a checkpoint", error)
            raise SystemExit(STATE_LOST_EXIT)
        if self.step == NO_STEP:
            raise SystemExit(ENDED_EXIT)
        # Where a member is over, all others have the result of the last step.
        self._version = max(self._records)
