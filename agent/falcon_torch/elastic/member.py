"""Keep a process's place in a training group that changes: yield the steps, and meet for the next group.

``Group`` and ``ShardedGroup`` say what this member has, and what it takes over from the others in a new group.
"""

from __future__ import annotations

import logging
import os
from typing import Any, Iterator, List

from falcon_torch.elastic.attendance import Attendance, NewGroup, RefusedError
from falcon_torch.elastic.process_group import BrokenError, FixedProcessGroup, ProcessGroup, take
from falcon_torch.elastic.roster import ENDED, STATE_LOST

MEETING_KEY = "falcon-elastic-meeting"  # in the store at MASTER_ADDR: the port of the meeting
STATE_LOST_EXIT = 76  # exit code of a newcomer that no process can give the state
ENDED_EXIT = 77  # exit code of a newcomer to a training that is over: the failure that it replaces is not mended
MOST_ATTEMPTS = 8  # new groups one after the other in which not one call succeeds
_log = logging.getLogger("falcon_torch")


class Member:
    """A process in a group. ``step`` is its present step, ``number`` the group's, ``index`` its place of ``size``.

    Without the launcher of this package the group is that of the environment, and never changes.
    """

    def __init__(self, step: int, timeout_seconds: float | None) -> None:
        """Take the process's group. ``step``: before a member has the state."""
        self._group: ProcessGroup | FixedProcessGroup = take(timeout_seconds)
        self.step = step
        self.number, self.size, self.index = 0, 1, 0
        self._over = False  # all steps are made
        self._done = False  # this step's micro-batches are computed, and the script goes on behind them
        self._attempts = 0  # new groups since a call has succeeded
        self._attendance: Attendance | None = None

    def steps(self, total: int) -> Iterator[int]:
        """Yield the steps up to ``total``, excluded, each once."""
        while self.step < total:
            self._done = False
            yield self.step
            if not self._done:
                raise RuntimeError(f"step {self.step} has not gone through all of its micro_batches()")
            self.step += 1
        self._over = True
        self._end_together()
        if self._attendance is not None:
            self._attendance.end()

    # -- what a kind of group adds -----------------------------------------------------------------------------------

    def _listen(self, group: ProcessGroup, attendance: Attendance) -> None:
        """Say when the group's calls are to be given up."""
        raise NotImplementedError

    def _begin_fixed(self, group: FixedProcessGroup) -> None:
        """Begin in a group that never changes."""
        raise NotImplementedError

    def _end_together(self) -> None:
        """Wait until all members have the result of the last step: one that has lost it gets it from the others."""
        raise NotImplementedError

    def _has_state(self) -> bool:
        """Return whether this member can give a newcomer the state."""
        raise NotImplementedError

    def _facts(self) -> List[Any]:
        """Return what the others have to know of this member to go on with it."""
        raise NotImplementedError

    def _see_broken(self, group: ProcessGroup) -> None:
        """Act on a call that has broken, before the members meet."""

    def _take_over(self, new: NewGroup) -> None:
        """Get what this member lacks in a new group, and set ``size`` and ``index``. Raises BrokenError."""
        raise NotImplementedError

    # -- a new group -------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Wait for the first group, or for a place in the present one. Raises RefusedError where there is none."""
        group = self._group
        if not isinstance(group, ProcessGroup):
            self._begin_fixed(group)
            return
        address = os.environ["MASTER_ADDR"]
        self._attendance = Attendance(address, int(group.store.get(MEETING_KEY)), group.rank, group.wake)
        self._listen(group, self._attendance)
        try:
            self._meet(None)
        except RefusedError as error:
            _end_refused(error)
            raise

    def _meet(self, error: BrokenError | None) -> None:
        """Go on in the next group; ``error``: what ended the present one.

        Raises RefusedError where this process has no place in it, and BrokenError where groups fail one after another.
        """
        group, attendance = self._group, self._attendance
        if attendance is None or not isinstance(group, ProcessGroup):
            raise RuntimeError("this process is in no group that changes") from error
        while True:
            self._attempts += 1
            if error is not None:
                self._see_broken(group)
                if self._attempts > MOST_ATTEMPTS:
                    raise error
            new = attendance.arrive(self.number, group.handle(), self._facts(), self._has_state())
            self.number = new.number
            try:
                group.change(new.number, new.handles)
                self._take_over(new)
            except BrokenError as broken:
                error = broken
                continue
            _log.info("group %d: %d ranks, step %d", new.number, self.size, self.step)
            return


def _end_refused(error: RefusedError) -> None:
    """End a newcomer for which nothing is left to do. Raises SystemExit with its exit code."""
    if error.why == ENDED:
        _log.warning("the training is over: nothing is left to do for this process")
        raise SystemExit(ENDED_EXIT) from None
    if error.why == STATE_LOST:
        _log.error("no process is left that has the training's state")
        raise SystemExit(STATE_LOST_EXIT) from None
