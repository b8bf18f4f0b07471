"""A Lease in memory, and the epochs of two leaders between which it went back to a backup."""

from __future__ import annotations

import msgspec

from falcon_operator.base.ports import Conflict, Holder, NotFound
from falcon_operator.runtime.election import Election
from tests.unit.operator.fake_clock import FakeClock

DAY_SECONDS = 86_400.0


class OneLease:
    """A Lease's storage with resource versions; it can be made to fail."""

    def __init__(self) -> None:
        self.holder: Holder | None = None
        self.down = False
        self.refused = 0  # writes
        self.epochs: list[int] = []  # that were stored, each once

    async def read(self) -> Holder:
        if self.down:
            raise OSError("no answer")
        if self.holder is None:
            raise NotFound("no lease")
        return self.holder

    async def create(self, holder: Holder) -> Holder:
        if self.holder is not None:
            raise Conflict("exists")
        return self._store(holder)

    async def replace(self, holder: Holder) -> Holder:
        if self.down:
            self.refused += 1
            raise OSError("no answer")
        if self.holder is None or self.holder.resource_version != holder.resource_version:
            raise Conflict("changed")
        return self._store(holder)

    def _store(self, holder: Holder) -> Holder:
        if holder.transitions not in self.epochs:
            self.epochs.append(holder.transitions)
        version = int(self.holder.resource_version) + 1 if self.holder else 1
        self.holder = msgspec.structs.replace(holder, resource_version=str(version))
        return self.holder


async def epochs_around_a_restore() -> tuple[int, int]:
    """Return the epoch of the last leader before a cluster went back to yesterday, and of the first one after."""
    clock, leases = FakeClock(), OneLease()

    async def lead() -> int:
        candidate = Election(leases, "a", clock)  # of one pod, so that none has to wait
        await candidate.acquire()
        return candidate.epoch

    await lead()
    yesterday = leases.holder
    for _ in range(3):
        clock.advance(DAY_SECONDS / 4)
        before = await lead()
    clock.advance(DAY_SECONDS / 4)
    leases.holder = yesterday
    return before, await lead()
