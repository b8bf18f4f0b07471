"""Keep a lease alive in the background.

Each beat is a call of its own, with its own deadline, on whatever endpoint answers: a lease outlives reconnects,
failovers and etcd restarts (etcd extends every lease when a leader takes over). It is *lost* only when etcd says that
it is gone, or keeps refusing the beat until the time to live has passed: silence proves nothing about etcd's state.
"""

from __future__ import annotations

import asyncio
import logging
import time

from falcon_etcd._errors import Closed, EtcdError, LeaseNotFound, Unavailable
from falcon_etcd._proto import rpc_pb2 as pb
from falcon_etcd._rpc import LEASE_KEEP_ALIVE, LEASE_REVOKE
from falcon_etcd._transport import Transport

_log = logging.getLogger("falcon_etcd")
_BEATS_PER_TTL = 3


class Lease:
    """A granted lease. Keys put with its ``id`` live as long as it does.

    When :attr:`lost` is set, the keys are gone: grant a new lease and put them again.
    """

    def __init__(self, transport: Transport, lease_id: int, ttl_seconds: int, granted_at: float) -> None:
        self.id = lease_id
        self.ttl_seconds = ttl_seconds
        self.lost = asyncio.Event()
        self.lost_reason = ""
        self._transport = transport
        self._renewed_at = granted_at
        self._beats = asyncio.create_task(self._keep_alive(), name=f"etcd-lease-{lease_id:x}")
        self._beats.add_done_callback(self._end)

    @property
    def remaining_seconds(self) -> float:
        """Return how long the lease is certain to live without another beat [s]; below 0 it may have expired unseen."""
        return self._renewed_at + self.ttl_seconds - time.monotonic()

    @property
    def kept(self) -> bool:
        """Return whether the beats go on: the lease is neither lost nor closed."""
        return not self._beats.done()

    async def close(self) -> None:
        """Stop the beats and revoke the lease.

        The keys vanish at once, or within the time to live when etcd cannot be reached.
        """
        await self.stop()
        if self.lost.is_set():
            return
        try:
            await self._transport.call(LEASE_REVOKE, pb.LeaseRevokeRequest(ID=self.id), f"revoke lease {self.id:x}")
        except LeaseNotFound:
            pass
        except (Unavailable, Closed) as error:
            _log.warning("lease %x is left to expire within %d s: %s", self.id, self.ttl_seconds, error)

    async def stop(self) -> None:
        """Stop the beats without revoking: the lease expires by itself."""
        self._beats.cancel()
        await asyncio.wait({self._beats})

    async def __aenter__(self) -> Lease:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _keep_alive(self) -> None:
        period = self.ttl_seconds / _BEATS_PER_TTL
        missed = 0
        while True:
            # From the last beat that was answered, so that a slow answer does not shift all later beats.
            await asyncio.sleep(max(0.0, self._renewed_at + period - time.monotonic()))
            started = time.monotonic()
            try:
                remaining = await self._beat(period)
            except Closed:
                return None
            except EtcdError as error:
                # Silence proves nothing; only a refusal that lasts for the time to live does.
                if not isinstance(error, Unavailable) and self.remaining_seconds <= 0:
                    return self._lose(str(error))
                log = _log.warning if missed == 0 else _log.debug
                log("lease %x: no beat, certain for %.1f s: %s", self.id, self.remaining_seconds, error)
                missed += 1
                await asyncio.sleep(period / 2)
                continue
            if remaining <= 0:
                return self._lose("etcd does not know the lease: it expired, was revoked, or etcd lost its data")
            if missed:
                _log.info("lease %x: beats again after %d missed", self.id, missed)
                missed = 0
            # From before the call: etcd extended the lease at some moment after that.
            self._renewed_at = started

    async def _beat(self, timeout_seconds: float) -> int:
        """Send one beat and return the seconds that etcd grants from now on; 0 for a lease that is gone."""
        response = await self._transport.exchange(
            LEASE_KEEP_ALIVE,
            pb.LeaseKeepAliveRequest(ID=self.id),
            f"keep lease {self.id:x} alive",
            timeout_seconds=timeout_seconds,
        )
        return response.TTL

    def _end(self, beats: asyncio.Task[None]) -> None:
        """Count the lease as lost where the beats ended by an error of this program, so that no caller relies on it."""
        if not beats.cancelled() and (fault := beats.exception()) is not None:
            self._lose(f"the beats failed: {fault!r}")

    def _lose(self, reason: str) -> None:
        _log.warning("lease %x is lost: %s", self.id, reason)
        self.lost_reason = reason
        self.lost.set()
