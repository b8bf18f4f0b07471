"""Elect the leader by a ``coordination.k8s.io`` Lease.

The client library's own election is not used, because it trusts the wall clock, may hang past its deadline in a call
without a time limit, and never gives the Lease back. Here, the renewals of other candidates are timed by this process's
monotonic clock since they were *seen*, so that clocks of different machines are never compared. Each new leadership, a
restarted process's own included, raises ``leaseTransitions``. This number is the epoch, by which etcd, gateways and
agents tell a stalled former leader from the leader. It is at least the number of seconds since a fixed date: a Lease
that was restored from a backup, or made again, leads to a higher epoch than all before it (docs/adr/0157).

A leader that has not renewed for ``RENEW_DEADLINE_SECONDS`` counts as lost while its Lease is still valid for some
seconds: it ends before another candidate can begin. ``assert_leading`` is called before every write, since this process
may have been stopped for longer than that without knowing it.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Awaitable

import msgspec
import structlog

from falcon_operator.base.ports import (
    LEASE_NAME,
    LEASE_SECONDS,
    Clock,
    Conflict,
    Holder,
    LeadershipLost,
    Leases,
    NotFound,
)

RENEW_DEADLINE_SECONDS = 10.0
RETRY_SECONDS = 2.0
AGAIN_SECONDS = 0.2  # after a renewal without an answer: the time until the deadline is short
CALL_SECONDS = 3.0
EPOCHS_BEGIN = 1_704_067_200  # unix seconds of 2024-01-01T00:00:00Z
# A clock that is decades ahead leaves as many epochs above it: Kubernetes keeps the number in 31 bits.
MOST_BY_CLOCK = 2**30
log = structlog.get_logger(__name__)


class Seen(msgspec.Struct, frozen=True):
    """Another candidate's Lease and when its last renewal was first seen (monotonic seconds)."""

    holder: Holder
    since: float


def observe(before: Seen | None, holder: Holder, now: float) -> Seen:
    """Return the Lease with the time since when it has been seen unchanged.

    Any change of the Lease proves that its holder lived at that time.
    """
    if before is not None and before.holder == holder:
        return before
    return Seen(holder, now)


def may_take(seen: Seen, identity: str, now: float) -> bool:
    """Check whether the Lease is free: given back, expired, or left by this pod's own earlier process."""
    holder = seen.holder
    return not holder.identity or holder.identity == identity or now - seen.since > holder.lease_seconds


def next_epoch(before: int, unix_seconds: float) -> int:
    """Return the epoch of the leadership that follows the Lease's last one.

    It is greater than ``before``, and than every epoch that was begun in an earlier second of the clock. So what the
    Lease has forgotten does not matter.
    """
    return max(before + 1, min(int(unix_seconds) - EPOCHS_BEGIN, MOST_BY_CLOCK))


class Election:
    """A candidate. Call ``acquire`` once, then ``keep`` for as long as it leads, at the end ``release``."""

    def __init__(self, leases: Leases, identity: str, clock: Clock) -> None:
        self._leases = leases
        self._identity = identity
        self._clock = clock
        self._held: Holder | None = None
        self._renewed_at = float("-inf")
        self._seen: Seen | None = None
        self._changing = asyncio.Lock()
        self.in_touch = False  # the Lease has been read or written once

    @property
    def epoch(self) -> int:
        """Return the epoch, which grows with every leadership.

        Raises :class:`LeadershipLost` unless this candidate leads.
        """
        self.assert_leading()
        assert self._held is not None  # assert_leading has looked
        return self._held.transitions

    @property
    def leading(self) -> bool:
        """Check whether no other candidate can lead at this moment."""
        return self._held is not None and self._clock.monotonic() - self._renewed_at < RENEW_DEADLINE_SECONDS

    @property
    def operator_lives(self) -> bool:
        """Check whether some operator leads, or may do so soon.

        This one leads, or the Lease was renewed within its own validity. A Lease that was given back lately counts as
        well: this candidate is about to take it.
        """
        seen = self._seen
        return self.leading or (
            seen is not None and self._clock.monotonic() - seen.since <= (seen.holder.lease_seconds or LEASE_SECONDS)
        )

    def assert_leading(self) -> None:
        """Raise :class:`LeadershipLost` from the moment on when another candidate may lead."""
        if not self.leading:
            raise LeadershipLost(f"the Lease {LEASE_NAME} was not renewed for {RENEW_DEADLINE_SECONDS:.0f} s")

    async def acquire(self) -> None:
        """Wait until this candidate leads."""
        while self._held is None:
            try:
                self._seen = await self._attempt(self._seen)
            except (Conflict, NotFound):
                self._seen = None  # another operator was quicker
            except (OSError, TimeoutError) as error:
                log.warning("lease cannot be read", error=str(error) or type(error).__name__)
            if self._held is None:
                await asyncio.sleep(RETRY_SECONDS)
        log.info("leading", identity=self._identity, epoch=self._held.transitions)

    async def _attempt(self, before: Seen | None) -> Seen | None:
        started = self._clock.monotonic()
        try:
            holder = await _in_time(self._leases.read())
            self.in_touch = True
        except NotFound:
            self.in_touch = True
            fresh = self._mine(Holder(transitions=0))
            self._hold(await _in_time(self._leases.create(fresh)), started)
            return None
        # The holder's renewals are timed by this process's clock: clocks of machines are never compared.
        seen = observe(before, holder, self._clock.monotonic())
        if not may_take(seen, self._identity, self._clock.monotonic()):
            if before is None or before.holder.identity != holder.identity:
                log.info("standby", leader=holder.identity)
            return seen
        started = self._clock.monotonic()
        self._hold(await _in_time(self._leases.replace(self._mine(holder))), started)
        return seen

    def _mine(self, holder: Holder) -> Holder:
        now = _now(self._clock)
        return msgspec.structs.replace(
            holder,
            identity=self._identity,
            transitions=next_epoch(holder.transitions, self._clock.unix()),
            lease_seconds=LEASE_SECONDS,
            renewed=now,
            acquired=now,
        )

    def _hold(self, holder: Holder, asked_at: float) -> None:
        self._held, self._renewed_at = holder, asked_at

    async def keep(self) -> None:
        """Renew the Lease until cancelled.

        Raises :class:`LeadershipLost` as soon as the leadership is no longer certain.
        """
        pause = RETRY_SECONDS
        while True:
            await asyncio.sleep(pause)
            self.assert_leading()
            pause = RETRY_SECONDS
            try:
                await self._replace()
            except (Conflict, NotFound):
                # The write may have been stored though its answer was lost: only a read can tell.
                await self._lost_or_renewed()
            except (OSError, TimeoutError) as error:
                log.warning("lease not renewed", error=str(error) or type(error).__name__)
                pause = AGAIN_SECONDS

    async def _lost_or_renewed(self) -> None:
        """Find out why a renewal was refused. Raises :class:`LeadershipLost` when another candidate holds the Lease.

        An earlier renewal of this candidate may also have succeeded without an answer: then its result is taken over.
        """
        try:
            holder = await _in_time(self._leases.read())
        except (NotFound, OSError, TimeoutError) as error:
            raise LeadershipLost(f"the Lease {LEASE_NAME} is gone or cannot be read: {error}") from error
        # The same epoch under this identity is this leadership's own write, whose answer was lost.
        if self._held is None or (holder.identity, holder.transitions) != (self._identity, self._held.transitions):
            self._held = None
            raise LeadershipLost(f"{holder.identity or 'no operator'} holds the Lease {LEASE_NAME}")
        self._held = holder

    async def raise_epoch(self, least: int) -> int:
        """Raise the epoch to at least ``least`` and return it.

        Only the holder of the Lease can do so. Raises :class:`LeadershipLost` or Conflict.
        """
        async with self._changing:
            if self.epoch < least:
                await self._replace_locked(least)
        return self.epoch

    async def _replace(self) -> None:
        async with self._changing:
            await self._replace_locked(0)

    async def _replace_locked(self, least_epoch: int) -> None:
        assert self._held is not None  # only a leader renews
        wanted = msgspec.structs.replace(
            self._held, renewed=_now(self._clock), transitions=max(self._held.transitions, least_epoch)
        )
        started = self._clock.monotonic()
        self._hold(await _in_time(self._leases.replace(wanted)), started)

    async def release(self) -> None:
        """Give the Lease back, so that the next leader need not wait."""
        async with self._changing:
            held, self._held = self._held, None
            if held is None:
                return
            try:
                empty = msgspec.structs.replace(held, identity="", renewed=_now(self._clock))
                # Another candidate is about to take it: until this process ends, it answers that an operator lives.
                self._seen = Seen(empty, self._clock.monotonic())
                await _in_time(self._leases.replace(empty))
            except (Conflict, NotFound, OSError, TimeoutError) as error:
                log.warning("lease not given back: it expires by itself", error=str(error) or type(error).__name__)


async def _in_time(call: Awaitable[Holder]) -> Holder:
    """Return the call's answer. Raises TimeoutError after ``CALL_SECONDS``."""
    async with asyncio.timeout(CALL_SECONDS):
        return await call


def _now(clock: Clock) -> str:
    """Return the present time as Kubernetes' MicroTime."""
    return dt.datetime.fromtimestamp(clock.unix(), dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
