"""Train in a group whose processes come and go: the step that a loss breaks is finished, none is done again.

    group = falcon_torch.elastic.Group(model, optimizer, micro_batches=12)
    for step in group.steps(1000):
        for number in group.micro_batches():
            (loss_of(model, step, number) / 12).backward()
        optimizer.step()

``micro_batches()`` clears the gradients, yields the numbers of this rank's micro-batches in the global batch, and then
exchanges the sums. Where the group breaks, or a process wants to join, the members meet within this call, and a rank
that has to compute more in this step gets more numbers. So the gradient is always that of the whole global batch,
whatever the number of ranks, and each number is in it once. Without the launcher of this package (``launch``) the group
is that of the environment, and a lost rank is an error, as in any other program.

A model in DistributedDataParallel keeps its meaning: the sums are divided by the ranks of the whole job, however many
of them are there, and the first member's buffers are those of all after each step. It exchanges nothing itself. The
script calls ``falcon_torch.elastic.init_process_group()`` in place of PyTorch's before it wraps the model.

A newcomer runs the same script. It gets the state of the first object to the last from a member when it makes the
group, and begins in the step in which the others are.
"""

from __future__ import annotations

from typing import Any, Iterator, List, Tuple

import torch

from falcon_torch.elastic import data_parallel
from falcon_torch.elastic.attendance import Attendance, NewGroup
from falcon_torch.elastic.dealing import NO_STEP, Progress, Resumption, begin, even, resume
from falcon_torch.elastic.gradients import Gradients, check_exchangeable
from falcon_torch.elastic.member import Member
from falcon_torch.elastic.member_state import collect, load, send
from falcon_torch.elastic.process_group import BrokenError, FixedProcessGroup, ProcessGroup


class Group(Member):
    """This rank's part in the training. All processes make it at the same place of their program.

    Args:
        model: on the CPU, plain or in DistributedDataParallel: the group exchanges its gradients.
        others: whatever else has ``state_dict`` and ``load_state_dict`` and must be alike on all ranks. None may be in
            DistributedDataParallel: let one module hold all that is trained.
        micro_batches: of a step, of all ranks together.
        step: the first to be computed, where the script has loaded a checkpoint. That of the first rank counts.
        timeout_seconds: after which a collective call fails though no process is known to be lost; 30 minutes if it is
            given neither here nor to ``init_process_group``.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *others: Any,
        micro_batches: int,
        step: int = 0,
        timeout_seconds: float | None = None,
    ) -> None:
        """Wait for the first group, or for a place in the present one, and take over the state.

        Raises ValueError for a model that the group cannot exchange, RefusedError where it has no place here.
        """
        if micro_batches < 1:
            raise ValueError(f"micro_batches={micro_batches}: a step has at least one")
        check_exchangeable(model)
        wrapper = data_parallel.wrapper(model, others)
        super().__init__(NO_STEP, timeout_seconds)
        if wrapper is None:
            self._gradients = Gradients(model)
        else:
            data_parallel.silence(wrapper)
            buffers = data_parallel.keeps_buffers_alike(wrapper)
            self._gradients = Gradients(model, divisor=self._group.wanted, buffers=buffers)
        self._parts: Tuple[Any, ...] = (model, *others)
        self._total = micro_batches
        self._first = step
        self._own: List[int] = []
        self._finished: List[int] = []
        self._reduced = 0
        self._inside = False  # ``micro_batches()`` of this step is under way
        self._next: Tuple[List[int], int] | None = None  # own micro-batches and reduced segments when it begins
        self._begin()

    # -- the loop ----------------------------------------------------------------------------------------------------

    def micro_batches(self) -> Iterator[int]:
        """Yield the numbers of this rank's micro-batches in this step; at the end each parameter has its gradient."""
        self._gradients.forget()
        dealt = even(self._total, self.size, self.index), 0
        (self._own, self._reduced), self._next = self._next or dealt, None
        self._finished, self._inside = [], True
        self._meet_if_wanted()
        while True:
            while self._own:
                yield self._own[0]
                self._finished.append(self._own.pop(0))
                self._meet_if_wanted()
            # A newcomer may begin in a step whose gradient it has got whole.
            if self._is_whole or self._exchange():
                break
        self._gradients.commit()
        self._inside, self._done = False, True

    def _exchange(self) -> bool:
        """Reduce the segments that are not; return whether all are, and False where there may be more to compute."""
        if not self._all_together():
            return self._is_whole
        try:
            for segment in range(self._reduced, len(self._gradients)):
                self._gradients.exchange(segment, self._group)
                self._reduced += 1
        except BrokenError as error:
            self._meet(error)
        return self._is_whole

    @property
    def _is_whole(self) -> bool:
        """Return whether all segments of this step's gradient are reduced."""
        return self._reduced == len(self._gradients)

    def _all_together(self) -> bool:
        """Wait until all members are in this exchange, so that none needs the result of the exchange before.

        Returns False where the group was renewed instead. Raises RuntimeError if the global batch is not whole.
        """
        counts = torch.tensor([len(self._finished)])
        try:
            self._group.sum(counts)
        except BrokenError as error:
            self._meet(error)
            return False
        self._attempts = 0
        if not self._over and counts.item() != self._total:
            raise RuntimeError(f"{counts.item()} micro-batches in step {self.step}, not {self._total}")
        return True

    # -- a new group -------------------------------------------------------------------------------------------------

    def _listen(self, group: ProcessGroup, attendance: Attendance) -> None:
        group.listen(lambda: attendance.is_over(self.number))

    def _begin_fixed(self, group: FixedProcessGroup) -> None:
        self.size, self.index = group.size, group.index
        first = torch.tensor([self._first])
        group.broadcast(first, 0)
        members = [Progress(NO_STEP, first=int(first.item()))] * group.size
        self._go_on(NewGroup(0, group.index, [], []), begin(members))

    def _end_together(self) -> None:
        self._own, self._finished, self._reduced = [], [], 0
        # A member that has lost the last exchange gets its result from the others.
        while not self._all_together():
            pass

    def _meet_if_wanted(self) -> None:
        if self._attendance is not None and self._attendance.is_over(self.number):
            self._meet(None)

    def _has_state(self) -> bool:
        return self.step != NO_STEP

    def _facts(self) -> List[Any]:
        own, finished = tuple(self._own), tuple(self._finished)
        return list(Progress(self.step, self._over, own, finished, self._reduced, self._first))

    def _take_over(self, new: NewGroup) -> None:
        self._go_on(new, begin([Progress.read(each) for each in new.progress]))
        self.size, self.index = len(new.handles), new.position

    def _go_on(self, new: NewGroup, members: List[Progress]) -> None:
        """Get what this member lacks, and its micro-batches. Nothing of it changes before all of it is there."""
        plan = resume(members, self._total, len(self._gradients))
        # The first group's source has the state before it has given it to any other.
        self.step = members[new.position].step
        copies = [self._copied(plan, new, segment) for segment in range(plan.first, plan.reduced)]
        if plan.newcomers:
            self._take_state(plan, new)
        is_late = new.position in plan.late
        if plan.keeps_copies(new.position):
            self._gradients.reduced[plan.first : plan.reduced] = copies
        dealt = list(plan.own[new.position]), 0 if plan.late else plan.reduced
        if is_late:
            # The step in which this member is has its gradient; what is dealt is of the next one.
            self._next, self._own, self._reduced = dealt, [], plan.reduced
        elif self._inside:
            self._own, self._reduced = dealt
        else:
            self._next, self.step, self._over = dealt, plan.step, members[plan.source].over

    def _copied(self, plan: Resumption, new: NewGroup, segment: int) -> torch.Tensor:
        is_source = new.position == plan.source
        values = self._gradients.reduced[segment] if is_source else self._gradients.empty(segment)
        self._group.broadcast(values, plan.source)
        return values

    def _take_state(self, plan: Resumption, new: NewGroup) -> None:
        """Give the newcomers the state of a member, or get it."""
        takes = new.position in plan.newcomers
        state = collect(self._parts) if new.position == plan.source else None
        state = send(self._group, plan.source, new.position, state, takes=takes)
        if takes:
            load(self._parts, state)
