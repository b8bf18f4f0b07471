"""``ports.Bus`` on etcd, and the tasks that keep its data current.

The *watch* fills the reports cache. The *heartbeat* holds the leader key, which every command compares. When the
heartbeat comes back through the watch, the session is whole. Three slow loops look after etcd's alarms, check
authentication, and remove what jobs that no longer exist have left. All are level-triggered: etcd may lose everything
at any time, and is filled again from what this process knows (users, the leader key) and from the jobs' status (plans,
which the jobs' reconciles publish again).
"""

from __future__ import annotations

import asyncio
import datetime as dt
import secrets
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
import structlog

from falcon_core.times import HEARTBEAT_SECONDS
from falcon_core.wire.keys import LEADER_KEY, JobKey
from falcon_core.wire.messages import DetailRequest, Plan
from falcon_etcd import Client, Closed, Compare, EtcdError, Op, Relisted, WatchEvent
from falcon_operator.bus import access, certs
from falcon_operator.bus.alarms import ALARMS_SECONDS, Alarms, BusState
from falcon_operator.bus.health import SessionHealth
from falcon_operator.bus.reports import ReportsCache
from falcon_operator.clock import Clock
from falcon_operator.ports import Conflict, JobReports, NotFound, Rejected

AUTH_CHECK_SECONDS = 15.0
SWEEP_SECONDS = 60.0
RETRY_SECONDS = 1.0
WATCHED = "/falcon/"  # the leader key and all jobs
log = structlog.get_logger(__name__)


class BusUnavailable(OSError):  # noqa: N818 - as its namesakes of etcd and Kubernetes
    """The error of a request that etcd did not carry out; the caller repeats the request later."""


class BusCertificates(Protocol):
    """The authority that signs the agents' certificates, and the one with which agents verify etcd's certificate."""

    @property
    def authority(self) -> certs.Pair: ...

    @property
    def server_authority(self) -> bytes: ...


class Leadership(Protocol):
    """The part of the election that the bus uses."""

    @property
    def epoch(self) -> int: ...

    async def raise_epoch(self, least: int) -> int: ...


class _Leader(msgspec.Struct, frozen=True):
    """The leader key's value.

    ``identity`` tells two leaders of the same epoch apart; a deleted Lease could lead to two such leaders. ``taken`` is
    new each time the key is taken. So it also tells one history of etcd from another.
    """

    epoch: int
    identity: str
    taken: str = ""


def _stored(value: bytes) -> _Leader:
    try:
        return msgspec.json.decode(value, type=_Leader)
    except msgspec.MsgspecError:
        return _Leader(0, "")  # nobody's: to be replaced


class EtcdBus:
    """One leader's session with etcd. ``run`` does the work; the other methods answer from what ``run`` has learned.

    ``on_change`` is called for each job with news. ``on_restored`` is called when every plan has to be published again.
    ``live_jobs`` returns those of some uids whose jobs exist. ``retention_seconds`` is the time for which etcd keeps
    history; None where that is not known.
    """

    def __init__(
        self,
        client: Client,
        leadership: Leadership,
        certificates: BusCertificates,
        clock: Clock,
        *,
        identity: str,
        on_change: Callable[[JobKey], None],
        on_restored: Callable[[], None],
        live_jobs: Callable[[frozenset[str]], Awaitable[frozenset[str]]],
        retention_seconds: float | None = None,
    ) -> None:
        self._client = client
        self._leadership = leadership
        self._certificates = certificates
        self._clock = clock
        self._identity = identity
        self._on_change = on_change
        self._on_restored = on_restored
        self._live_jobs = live_jobs
        self._cache = ReportsCache()
        self._health = SessionHealth()
        self._alarms = Alarms(client, clock, retention_seconds)
        self._granted: dict[str, JobKey] = {}
        self._credentials: dict[str, certs.Pair] = {}
        self._authenticating = asyncio.Lock()
        self._leading = b""  # the value that this operator wrote to the leader key

    # -- ports.Bus ---------------------------------------------------------------------------------------------------

    def reports(self, job_uid: str) -> JobReports:
        now = self._clock.monotonic()
        known = self._cache.reports(job_uid, self._health.healthy_since(now), now)
        return msgspec.structs.replace(known, bus_full=True) if self._alarms.state.full else known

    async def publish_plan(self, key: JobKey, plan: Plan) -> None:
        value = msgspec.json.encode(msgspec.structs.replace(plan, epoch=self._leadership.epoch))
        if self._cache.command(key, key.plan) == value:
            return
        await self._command(f"publish the plan of {key.namespace}/{key.name}", Op.put(key.plan, value))
        log.info("plan published", job=key.name, namespace=key.namespace, generation=plan.generation, phase=plan.phase)

    async def ask_detail(self, key: JobKey, generation: int, ranks: list[int]) -> None:
        stands = self._cache.command(key, key.detail)
        request = DetailRequest(epoch=self._leadership.epoch, generation=generation, ranks=ranks)
        value = msgspec.json.encode(request)
        if stands == value or (not stands and not ranks):
            return
        await self._command(f"ask for detail of {key.namespace}/{key.name}", Op.put(key.detail, value))

    async def ensure_access(self, key: JobKey) -> None:
        if key.uid in self._granted:
            return
        try:
            await access.grant(self._client, key)
        except EtcdError as error:
            raise BusUnavailable(str(error)) from error
        self._granted[key.uid] = key

    async def forget(self, key: JobKey) -> None:
        self._granted.pop(key.uid, None)
        self._credentials.pop(key.uid, None)
        try:
            await access.revoke(self._client, key.uid)
        except EtcdError as error:
            raise BusUnavailable(str(error)) from error
        await self._command(f"remove the keys of {key.namespace}/{key.name}", Op.delete_prefix(key.prefix))
        self._cache.forget(key.uid)
        log.info("job forgotten", job=key.name, namespace=key.namespace, uid=key.uid)

    def agent_credentials(self, job_uid: str) -> dict[str, bytes]:
        now = dt.datetime.fromtimestamp(self._clock.unix(), dt.UTC)
        pair = self._credentials.get(job_uid)
        if pair is None or now >= certs.renew_at(pair.cert):
            pair = self._credentials[job_uid] = certs.issue_client(self._certificates.authority, job_uid, now)
        return {"ca.crt": self._certificates.server_authority, "tls.crt": pair.cert, "tls.key": pair.key}

    # -- figures -----------------------------------------------------------------------------------------------------

    @property
    def healthy(self) -> bool:
        return self._health.healthy_since(self._clock.monotonic()) is not None

    @property
    def state(self) -> BusState:
        """Return etcd's alarms and the size of its database, as last seen."""
        return self._alarms.state

    @property
    def agents(self) -> int:
        return self._cache.agents()

    @property
    def rejected_reports(self) -> int:
        return self._cache.rejected

    # -- tasks -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled. Raises ``election.LeadershipLost`` when etcd or the Lease knows another leader."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(), name="bus-watch")
            tasks.create_task(self._repeat("heartbeat", self._beat, HEARTBEAT_SECONDS), name="bus-heartbeat")
            tasks.create_task(self._repeat("authentication", self._check_auth, AUTH_CHECK_SECONDS), name="bus-auth")
            tasks.create_task(self._repeat("alarms", self._alarms.check, ALARMS_SECONDS), name="bus-alarms")
            tasks.create_task(self._repeat("sweep", self._sweep, SWEEP_SECONDS), name="bus-sweep")

    async def _repeat(self, what: str, do: Callable[[], Awaitable[None]], every_seconds: float) -> None:
        failing = False
        while True:
            try:
                await do()
                failing = False
            except Closed:
                return
            except (EtcdError, OSError, Conflict, NotFound, Rejected) as error:
                (log.debug if failing else log.warning)("bus failed", what=what, error=str(error))
                failing = True
            await asyncio.sleep(RETRY_SECONDS if failing else every_seconds)

    async def _watch(self) -> None:
        while True:
            try:
                async for event in self._client.watch_prefix(WATCHED):
                    self._take_event(event, self._clock.monotonic())
            except Closed:
                return
            except EtcdError as error:
                log.warning("watch ended", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    def _take_event(self, event: Relisted | WatchEvent, now: float) -> None:
        if isinstance(event, Relisted) and self._cache.lost_data(event.kvs):
            self._lost_data()
        if isinstance(event, WatchEvent):
            self._alarms.wrote(len(event.kv.key) + len(event.kv.value))
        changed = self._cache.apply(event, now)
        if isinstance(event, WatchEvent) and event.kv.key == LEADER_KEY and event.kv.value == self._leading:
            self._health.heard(now)  # our own heartbeat came back through the watch
        for key in changed:
            self._on_change(key)

    async def _beat(self) -> None:
        """Hold the leader key; take it where it belongs to nobody or to an earlier leader."""
        if self._leading:
            held = [Compare.value(LEADER_KEY, "==", self._leading)]
            if (await self._client.txn(held, [Op.put(LEADER_KEY, self._leading)])).succeeded:
                return
        await self._take_over()

    async def _take_over(self) -> None:
        kv = await self._client.get(LEADER_KEY)
        await self._check_auth()
        epoch = self._leadership.epoch
        if kv is None:
            if self._leading:
                self._lost_data()
            unchanged = Compare.version(LEADER_KEY, "==", 0)
        else:
            stored = _stored(kv.value)
            if stored.epoch > epoch or (stored.epoch == epoch and stored.identity != self._identity):
                # a Lease that was deleted begins at 0 again; only its present holder may raise the epoch from there
                epoch = await self._leadership.raise_epoch(stored.epoch + 1)
            unchanged = Compare.mod_revision(LEADER_KEY, "==", kv.mod_revision)
        value = msgspec.json.encode(_Leader(epoch, self._identity, secrets.token_hex(8)))
        if (await self._client.txn([unchanged], [Op.put(LEADER_KEY, value)])).succeeded:
            self._leading = value
            log.info("leader key taken", epoch=epoch)
            self._on_restored()

    def _lost_data(self) -> None:
        """Record that etcd came back empty: until the agents have written again, a missing key proves nothing."""
        log.warning("etcd lost its data; users, roles and plans are made again")
        self._health.lost_data(self._clock.monotonic())

    async def _check_auth(self) -> None:
        async with self._authenticating:
            if await access.ensure_auth(self._client, list(self._granted.values())):
                self._on_restored()

    async def _sweep(self) -> None:
        """Remove the data of jobs that no longer exist, and create again the users of existing jobs that were removed.

        The live jobs are read last. So a job that is created meanwhile counts as live. A job that is deleted after that
        read is found by the next sweep.
        """
        holders, left = await access.holders(self._client), list(self._cache.jobs())
        for key in [key for uid, key in self._granted.items() if uid not in holders]:
            await access.grant(self._client, key)
        if not holders and not left:
            return
        live = await self._live_jobs(frozenset(holders) | {key.uid for key in left})
        for uid in sorted(holders - live):
            self._granted.pop(uid, None)
            self._credentials.pop(uid, None)
            await access.revoke(self._client, uid)
            log.info("swept", uid=uid)
        for key in left:
            if key.uid not in live:
                await self._command(f"remove the keys of {key.namespace}/{key.name}", Op.delete_prefix(key.prefix))
                self._cache.forget(key.uid)

    async def _command(self, what: str, *operations: Op) -> None:
        """Write what only the leader may write.

        Raises :class:`BusUnavailable` when etcd cannot be reached or this operator does not hold the leader key.
        """
        if not self._leading:
            raise BusUnavailable(f"{what}: etcd has not been reached yet")
        try:
            answer = await self._client.txn([Compare.value(LEADER_KEY, "==", self._leading)], operations)
        except EtcdError as error:
            raise BusUnavailable(str(error)) from error
        if not answer.succeeded:
            raise BusUnavailable(f"{what}: the leader key is not ours (any more)")
