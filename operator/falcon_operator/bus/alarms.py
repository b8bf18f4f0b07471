"""Watch etcd's alarms, report them, and repair what can be repaired.

An etcd whose database has reached its quota raises NoSpace and refuses every write from then on, whatever is deleted or
compacted: it takes an administrator to make room and to take the alarm back. The leader is that administrator. It
compacts to the current revision (a bus needs no history), defragments one member after the other, and disarms. It
repeats that, ever less often, as long as the alarm stands.

Corrupt means that members disagree about their data. Nothing here repairs that, so the alarm is said and left standing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import structlog

from falcon_etcd import Alarm, Client, Compacted, EtcdError
from falcon_operator.base.ports import BusState, Clock, Database
from falcon_operator.bus import capacity

ALARMS_SECONDS = 5.0  # between two looks
COMPACT_SECONDS = 60.0
DEFRAGMENT_SECONDS = 120.0
FIRST_PAUSE_SECONDS = 5.0  # between two attempts to make room; doubles
LONGEST_PAUSE_SECONDS = 300.0
_MIB = 1024**2
_MORE_ROOM = "raise etcd.quotaBackendBytes, or lower etcd.autoCompactionRetention"
log = structlog.get_logger(__name__)


class Alarms:
    """One leader's care for etcd's database. ``check`` is to be called every ``ALARMS_SECONDS``.

    ``retention_seconds`` is etcd's ``--auto-compaction-retention``; None where it is not known.
    """

    def __init__(self, client: Client, clock: Clock, retention_seconds: float | None) -> None:
        self._client = client
        self._clock = clock
        self._retention_seconds = retention_seconds
        self._history = None if retention_seconds is None else capacity.WriteHistory(retention_seconds)
        self._written_bytes = 0
        self._compared = False  # quota and retention, at the first answer
        self._filling = False
        self._full_since: float | None = None
        self._attempt_at = 0.0
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._hindrance = ""  # why the last attempt made no room
        self._healed = 0
        self.state = BusState()

    def wrote(self, size_bytes: int) -> None:
        """Count what the watch has shown as written."""
        self._written_bytes += size_bytes

    async def check(self) -> None:
        """Look at alarms and sizes; make room where etcd is full. Raises :class:`EtcdError` when etcd cannot answer."""
        alarms = await self._client.maintenance.alarms()
        databases = await self._measure()
        # The warning about too small a quota comes first: it is of use only before the database is full.
        self._weigh(databases)
        full = [alarm for alarm in alarms if alarm.kind == "NoSpace"]
        corrupt = [alarm for alarm in alarms if alarm.kind == "Corrupt"]
        # Times and pauses of the attempts follow the alarm, so they are updated before any attempt.
        self._follow(bool(full), databases)
        if corrupt and not self.state.corrupt:
            log.error("bus corrupt", members=[f"{alarm.member_id:x}" for alarm in corrupt])
        self._show(databases, full=bool(full), corrupt=bool(corrupt))
        if full and not corrupt and self._clock.monotonic() >= self._attempt_at:
            # Only without the alarm Corrupt: then etcd serves no key, and nothing here repairs that.
            await self._attempt(full)
            self._show(databases, full=True, corrupt=False)

    # -- what is seen and said ---------------------------------------------------------------------------------------

    async def _measure(self) -> tuple[Database, ...]:
        """Return the databases of the members that answer."""
        found = await asyncio.gather(*map(self._database, self._client.endpoints))
        return tuple(database for database in found if database is not None)

    async def _database(self, endpoint: str) -> Database | None:
        try:
            status = await self._client.status(endpoint)
        except EtcdError as error:
            log.debug("member not measured", endpoint=endpoint, error=str(error))
            return None
        return Database(
            endpoint=endpoint,
            size_bytes=status.db_size_bytes,
            in_use_bytes=status.db_in_use_bytes,
            quota_bytes=status.db_quota_bytes or capacity.DEFAULT_QUOTA_BYTES,
            revision=status.revision,
        )

    def _weigh(self, databases: Sequence[Database]) -> None:
        """Compare quota and retention with what has to be written at least, once, and with what is written."""
        if self._retention_seconds is None or self._history is None or not databases:
            return
        quota_bytes = min(database.quota_bytes for database in databases)
        if not self._compared:
            self._compared = True
            # Quota and retention are settings. They are compared once, so that a wrong pair is logged at the start.
            rate = capacity.lasting_bytes_per_second(quota_bytes, self._retention_seconds)
            figures = {"quota_bytes": quota_bytes, "retention_seconds": self._retention_seconds}
            if rate < capacity.LEAST_BYTES_PER_SECOND:
                log.warning("bus small", bytes_per_second=round(rate), **figures, remedy=_MORE_ROOM)
            else:
                log.info("bus capacity", bytes_per_second=round(rate), **figures)
        # What is written now shows a database that will fill, though both settings were right for the planned size.
        self._history.sample(self._clock.monotonic(), self._written_bytes)
        expected_bytes = self._history.expected_bytes()
        filling = expected_bytes is not None and expected_bytes > capacity.FILLING_SHARE * quota_bytes
        if filling and not self._filling:
            log.warning("bus filling", expected_bytes=round(expected_bytes or 0), quota_bytes=quota_bytes)
        self._filling = filling

    def _follow(self, full: bool, databases: Sequence[Database]) -> None:
        """Say once that etcd is full, and once that it has room again."""
        now = self._clock.monotonic()
        if full and self._full_since is None:
            self._full_since = now
            sizes = {database.endpoint: database.size_bytes for database in databases}
            log.error("bus full", database_bytes=sizes, remedy="room is made; see /readyz if that does not help")
        elif not full and self._full_since is not None:
            log.info("bus has room again", seconds=round(now - self._full_since, 1))
            self._healed += 1
            self._full_since = None
            self._attempt_at, self._pause_seconds, self._hindrance = 0.0, FIRST_PAUSE_SECONDS, ""

    def _show(self, databases: tuple[Database, ...], *, full: bool, corrupt: bool) -> None:
        notes = []
        if full:
            hindrance = f" That has not helped yet: {self._hindrance}." if self._hindrance else ""
            notes.append(
                "BusFull: etcd's database has reached its quota, and etcd refuses every write: reports and plans pass"
                " only by the gateways' streams to the operator; training goes on. The operator compacts, defragments"
                f" and disarms the alarm.{hindrance}"
            )
        if corrupt:
            notes.append(
                "BusCorrupt: the members of etcd disagree about their data (alarm CORRUPT), and etcd serves no key."
                " Falcon never disarms this alarm. Delete etcd's pods and their PersistentVolumeClaims: etcd holds no"
                " durable truth and is filled again. Of an etcd of your own, replace the member that raised the alarm."
            )
        if self._filling:
            notes.append(f"BusFilling: what is written fills more than half of etcd's quota: {_MORE_ROOM}.")
        self.state = BusState(
            databases=databases,
            full=full,
            corrupt=corrupt,
            healed=self._healed,
            written_bytes=self._written_bytes,
            notes=tuple(notes),
        )

    # -- what is done ------------------------------------------------------------------------------------------------

    async def _attempt(self, alarms: Sequence[Alarm]) -> None:
        """Make room once, and set the time of the next attempt, should the alarm stand then."""
        before = self._hindrance
        try:
            self._hindrance = await self._make_room()
            if not self._hindrance:
                # etcd refuses writes until the alarm is taken back, even when there is room again.
                for alarm in alarms:
                    await self._client.maintenance.disarm(alarm)
        except EtcdError as error:
            self._hindrance = str(error)
        if self._hindrance and not before:
            log.error("bus stays full", why=self._hindrance)
        self._attempt_at = self._clock.monotonic() + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)

    async def _make_room(self) -> str:
        """Compact and defragment. Return why there is no room all the same; "" where there is.

        A member that does not answer is passed over: it raises the alarm again when it is back and still full.
        """
        databases = await self._measure()
        if not databases:
            return "no member answers"
        revision = max(database.revision for database in databases)
        # History that is gone already needs no compaction: etcd itself may have compacted meanwhile.
        with contextlib.suppress(Compacted):
            await self._client.compact(revision, physical=True, timeout_seconds=COMPACT_SECONDS)
        for database in databases:  # the figure of what is in use lags in an idle etcd: only a copy shows what is left
            await self._client.maintenance.defragment(database.endpoint, DEFRAGMENT_SECONDS)
        # Disarming a member that is still full would raise the alarm again at its next write.
        for database in await self._measure():
            if capacity.is_full(database.size_bytes, database.quota_bytes):
                return (
                    f"{database.endpoint} holds {database.size_bytes / _MIB:.0f} MiB without any history, too much"
                    f" for its quota of {database.quota_bytes / _MIB:.0f} MiB; raise etcd.quotaBackendBytes, or look"
                    " which keys fill it (etcdctl get --prefix --keys-only /) and delete them"
                )
        return ""
