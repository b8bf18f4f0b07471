"""Implement ``ports.Bus``: exchange reports, announcements and commands with gateways, by streams and by etcd.

Either way is enough. What the jobs shall know is kept in ``Wanted``: each stream repeats it, and a task writes it into
etcd, where gateways find it after a restart, and again after etcd has lost its data. Reports come as batches by both
ways; the cache merges them in any order.

The *watch* on etcd shows gateways, batches, and what etcd holds of ``Wanted``. The *heartbeat* holds the leader key,
which every write compares; when it comes back through the watch, the session is whole. It is whole as well while the
streams answer of all gateways whose pods are ready (``census``). Three slow loops look after etcd's alarms, check
authentication, and remove what is left of jobs and gateways that are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

import msgspec
import structlog
from google.protobuf.message import DecodeError

from falcon_core.times import HEARTBEAT_SECONDS
from falcon_core.wire import keys
from falcon_core.wire.keys import GATEWAYS, LEADER_KEY, REPORTS, JobKey, gateway_of, job_of
from falcon_core.wire.launcher.imports import Imports
from falcon_core.wire.measurement.probe import ProbeOrder
from falcon_core.wire.reporting.messages import DetailRequest, Plan
from falcon_core.wire.reporting.microbatches import MicrobatchOrder
from falcon_core.wire.saves.peers import Peers
from falcon_etcd import Client, Closed, EtcdError, KeyValue, Op, Relisted, WatchEvent
from falcon_gateway import Batch, Leader, Tls
from falcon_operator.base.ports import BusState, Clock, Conflict, JobReports, NotFound, Rejected
from falcon_operator.bus import access
from falcon_operator.bus.alarms import ALARMS_SECONDS, Alarms
from falcon_operator.bus.census import Pods, read_registration
from falcon_operator.bus.credentials import BusCertificates, Credentials
from falcon_operator.bus.gateways import Gateways
from falcon_operator.bus.health import SessionHealth
from falcon_operator.bus.leader_key import BusUnavailable, LeaderKey, Leadership
from falcon_operator.bus.reports import ReportsCache
from falcon_operator.bus.stored import Stored
from falcon_operator.bus.sweep import Sweep
from falcon_operator.bus.wanted import Wanted

AUTH_CHECK_SECONDS = 15.0
SWEEP_SECONDS = 60.0
RETRY_SECONDS = 1.0
LISTEN_SECONDS = 0.5  # between two looks at who is heard
WATCHED = "/falcon/"  # the leader key, gateways, announcements, commands and reports
_NO_GATEWAY = (
    "NoGateway: no falcon-gateway is heard, and so no agent: no report and no plan passes; training goes on. Look at"
    " the pods of the gateway's Deployment."
)
_Message = Plan | DetailRequest | MicrobatchOrder | Peers | Imports | ProbeOrder
log = structlog.get_logger(__name__)


class EtcdBus:
    """One leader's session with etcd and the gateways. ``run`` does the work; the other methods answer at once.

    ``on_change`` is called for each job with news; True: some of its agents are silent. ``on_restored`` is called when
    the leader key was taken: every job is to be looked at. ``live_jobs`` returns those of some uids whose jobs exist,
    ``gateway_pods`` the pods of the gateways (None: not listed yet). ``retention_seconds`` is the time for which etcd
    keeps history; None where that is not known.
    """

    def __init__(
        self,
        client: Client,
        gateway_tls: Tls,
        leadership: Leadership,
        certificates: BusCertificates,
        clock: Clock,
        *,
        identity: str,
        on_change: Callable[[JobKey, bool], None],
        on_restored: Callable[[], None],
        live_jobs: Callable[[frozenset[str]], Awaitable[frozenset[str]]],
        gateway_pods: Callable[[], Pods | None],
        retention_seconds: float | None = None,
    ) -> None:
        self._client = client
        self._leadership = leadership
        self._clock = clock
        self._on_change = on_change
        self._on_restored = on_restored
        self._wanted = Wanted()
        self._stored = Stored()
        self._unwritten = asyncio.Event()
        self._cache = ReportsCache()
        self._etcd = SessionHealth()
        self._session = SessionHealth()  # by etcd or by all gateways' streams
        self._alarms = Alarms(client, clock, retention_seconds)
        self._leader_key = LeaderKey(client, leadership, identity)
        self._gateways = Gateways(
            gateway_tls,
            self._wanted.desired,
            lambda: Leader(identity, leadership.epoch),
            self._take_batch,
            gateway_pods,
            clock,
        )
        self._sweep = Sweep(self._leader_key, self._stored, clock, live_jobs)
        self._credentials = Credentials(certificates, clock)
        self._authenticating = asyncio.Lock()

    # -- ports.Bus ---------------------------------------------------------------------------------------------------

    def reports(self, job_uid: str) -> JobReports:
        now = self._clock.monotonic()
        known = self._cache.reports(job_uid, self._session.healthy_since(now), now)
        return msgspec.structs.replace(known, bus_full=True) if self._alarms.state.full else known

    def announce(self, key: JobKey, pod_uids: frozenset[str], procs_per_replica: int) -> None:
        if self._wanted.announce(key, pod_uids, procs_per_replica, self._leadership.epoch):
            self._cache.announced(key, pod_uids)
            self._unwritten.set()

    async def publish_plan(self, key: JobKey, plan: Plan) -> None:
        if self._publish(key, keys.PLAN, plan):
            log.info(
                "plan published", job=key.name, namespace=key.namespace, generation=plan.generation, phase=plan.phase
            )
        await self._pass_on(key, key.plan)

    async def ask_detail(self, key: JobKey, generation: int, ranks: list[int]) -> None:
        if not (ranks or self._wanted.published(key, keys.DETAIL) or self._stored.holds(key.detail)):
            return
        self._publish(key, keys.DETAIL, DetailRequest(epoch=0, generation=generation, ranks=ranks))
        await self._pass_on(key, key.detail)

    async def publish(self, key: JobKey, message: Peers | Imports) -> None:
        name = keys.PEERS if isinstance(message, Peers) else keys.IMPORTS
        self._publish(key, name, message)
        await self._pass_on(key, key.command(name))

    async def order_microbatches(self, key: JobKey, generation: int, shares: list[int]) -> None:
        if self._publish(key, keys.MICROBATCHES, MicrobatchOrder(epoch=0, generation=generation, shares=shares)):
            log.info("micro-batches", job=key.name, namespace=key.namespace, generation=generation, shares=shares)
        await self._pass_on(key, key.microbatches)

    async def order_probe(self, key: JobKey, order: ProbeOrder) -> None:
        if self._publish(key, keys.PROBE, order):
            log.info("probe", job=key.name, namespace=key.namespace, number=order.number, phase=order.phase)
        await self._pass_on(key, key.probe)

    async def forget(self, key: JobKey) -> None:
        self._drop(key)
        try:
            await self._sweep.remove(key)
        except BusUnavailable as error:  # the sweep does it later
            log.info("keys of a job that is gone stay in etcd for now", uid=key.uid, error=str(error))
        log.info("job forgotten", job=key.name, namespace=key.namespace, uid=key.uid)

    @property
    def first_job_expiry(self) -> float | None:
        """Return when the first certificate of a job's agents expires, unix seconds; None where there is none."""
        return self._credentials.first_expiry

    def agent_credentials(self, job_uid: str) -> dict[str, bytes]:
        return self._credentials.of(job_uid)

    # -- the leader --------------------------------------------------------------------------------------------------

    def all_announced(self, existing: Collection[str]) -> None:
        """Announce that each job that exists has been looked at: gateways forget all others.

        ``existing`` are their uids. Those that no look could announce stay as gateways know them.
        """
        self._wanted.desired.all_announced(existing)

    # -- figures -----------------------------------------------------------------------------------------------------

    @property
    def healthy(self) -> bool:
        """Check whether the session is whole, by etcd or by all gateways' streams."""
        return self._session.healthy_since(self._clock.monotonic()) is not None

    @property
    def etcd_healthy(self) -> bool:
        return self._etcd.healthy_since(self._clock.monotonic()) is not None

    @property
    def gateways(self) -> frozenset[str]:
        """Return the gateways that are heard now."""
        return frozenset(self._heard())

    @property
    def awaited_gateways(self) -> frozenset[str]:
        """Return the gateways whose streams have to work."""
        return self._gateways.awaited

    @property
    def streams(self) -> frozenset[str]:
        """Return the gateways whose streams work."""
        return self._gateways.answering

    @property
    def state(self) -> BusState:
        """Return etcd's alarms and the size of its database, as last seen, and what else is wrong with the bus."""
        state = self._alarms.state
        if self.gateways or not self.etcd_healthy:
            return state
        return msgspec.structs.replace(state, notes=(*state.notes, _NO_GATEWAY))

    @property
    def agents(self) -> int:
        return self._cache.agents()

    @property
    def refused_reports(self) -> dict[tuple[str, str, str], int]:
        """Return how many reports could not be read, by namespace, job and reason."""
        return self._cache.refused()

    # -- tasks -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled. Raises ``election.LeadershipLost`` when etcd or the Lease knows another leader."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._gateways.run(), name="bus-gateways")
            tasks.create_task(self._listen_always(), name="bus-hearing")
            tasks.create_task(self._watch(), name="bus-watch")
            tasks.create_task(self._write_always(), name="bus-writer")
            tasks.create_task(self._repeat("heartbeat", self._beat, HEARTBEAT_SECONDS), name="bus-heartbeat")
            tasks.create_task(self._repeat("authentication", self._check_auth, AUTH_CHECK_SECONDS), name="bus-auth")
            tasks.create_task(self._repeat("alarms", self._alarms.check, ALARMS_SECONDS), name="bus-alarms")
            tasks.create_task(self._repeat("sweep", self._sweep_once, SWEEP_SECONDS), name="bus-sweep")

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

    async def _beat(self) -> None:
        if await self._leader_key.hold(self._check_auth):
            self._unwritten.set()
            self._on_restored()

    async def _check_auth(self) -> None:
        async with self._authenticating:
            await access.ensure_auth(self._client)

    async def _sweep_once(self) -> None:
        for job in sorted(await self._sweep.dead_jobs(frozenset(self._cache.jobs()))):
            self._drop(job)
            await self._sweep.remove(job)
            log.info("swept", job=job.name, namespace=job.namespace, uid=job.uid)
        await self._sweep.remove_gateways(self._gateways.registered)
        await access.remove_agents(self._client)

    def _drop(self, key: JobKey) -> None:
        self._wanted.withdraw(key)
        self._cache.forget(key.uid)
        self._credentials.forget(key.uid)

    # -- what comes --------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            try:
                async for event in self._client.watch_prefix(WATCHED):
                    if isinstance(event, Relisted):
                        await self._relist(event.kvs)
                    else:
                        self._take_event(event)
            except Closed:
                return
            except EtcdError as error:
                log.warning("watch ended", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def _relist(self, kvs: Sequence[KeyValue]) -> None:
        self._stored.relist(kvs)
        self._unwritten.set()
        # The list replaces all that was known of gateways: one that registered and left while the watch was broken
        # sent no event.
        registered = {
            gateway_of(kv.key): registration
            for kv in kvs
            if kv.key.startswith(GATEWAYS) and (registration := read_registration(kv.value)) is not None
        }
        self._gateways.relist(registered)
        for kv in kvs:
            if kv.key.startswith(REPORTS):
                self._take_stored_batch(kv)
                await asyncio.sleep(0)  # a large cluster's reports take a while to read
        # Judge once who is heard, after the whole list: a pod may have moved to a gateway further down.
        self._listen()

    def _take_event(self, event: WatchEvent) -> None:
        key, value = event.kv.key, event.kv.value
        self._alarms.wrote(len(key) + len(value))
        if key == LEADER_KEY:
            if value and value == self._leader_key.value:
                self._etcd.heard(self._clock.monotonic())  # our own heartbeat came back through the watch
        elif key.startswith(GATEWAYS):
            self._take_gateway(event)
        elif event.type == "put":
            self._stored.put(key, value)
            if key.startswith(REPORTS):
                self._take_stored_batch(event.kv)
        else:
            self._stored.delete(key)
            # Jobs still need a key that is wanted. Another actor deleted it, so it is written again.
            job = job_of(key)
            if job is not None and key in self._wanted.values:
                self._stored.delete_prefix(job.prefix)  # gateways forgot the job, if it was its announcement
                self._unwritten.set()

    def _take_gateway(self, event: WatchEvent) -> None:
        gateway = gateway_of(event.kv.key)
        registration = read_registration(event.kv.value) if event.type == "put" else None
        if registration is None:
            self._gateways.unregister(gateway)
        else:
            self._gateways.register(gateway, registration)
        self._listen()

    def _take_stored_batch(self, kv: KeyValue) -> None:
        try:
            self._take_batch(Batch.FromString(kv.value))
        except DecodeError:  # no gateway of ours has written it
            log.debug("no batch", key=kv.key)

    def _take_batch(self, batch: Batch) -> None:
        changed = self._cache.take(batch, self._clock.monotonic())
        if changed is not None:
            self._on_change(changed, any(not entry.alive for entry in batch.entries))

    async def _listen_always(self) -> None:
        while True:
            self._listen()
            await asyncio.sleep(LISTEN_SECONDS)

    def _listen(self) -> None:
        """Note who is heard now."""
        now = self._clock.monotonic()
        if self._etcd.healthy_since(now) is not None or self._gateways.all_answer:
            self._session.heard(now)
        for key in self._cache.hear(self._heard(), now):
            self._on_change(key, False)

    def _heard(self) -> dict[str, int]:
        return self._gateways.heard(self.etcd_healthy, self._cache.incarnations)

    # -- what goes ---------------------------------------------------------------------------------------------------

    def _publish(self, key: JobKey, name: str, message: _Message) -> bool:
        """Publish a command under this leader's epoch; return whether that is news."""
        ours = msgspec.structs.replace(message, epoch=self._leadership.epoch)
        return self._wanted.publish(key, name, msgspec.json.encode(ours), ours.epoch)

    async def _pass_on(self, key: JobKey, command: str) -> None:
        """Return when every gateway has, or finds in etcd, what is wanted.

        A stream that works has it already, and the writer is about to write it. Else it is written now, behind the
        announcement of its job. Raises :class:`BusUnavailable` where that is not possible either.
        """
        if self._gateways.all_answer:
            self._unwritten.set()
            return
        wanted = self._wanted.values
        for lacking in self._stored.lacks({name: wanted[name] for name in (key.announce, command) if name in wanted}):
            await self._write(lacking)

    async def _write_always(self) -> None:
        """Write into etcd whatever it lacks of what is wanted."""
        failing = False
        while True:
            await self._unwritten.wait()
            self._unwritten.clear()
            if not self._leader_key.value:
                continue  # the task that takes the key sets ``_unwritten`` again
            try:
                # Only what etcd lacks is written, so a restart of the operator costs no write.
                for key in self._stored.lacks(self._wanted.values):
                    await self._write(key)
                failing = False
            except BusUnavailable as error:
                (log.debug if failing else log.warning)("bus failed", what="writer", error=str(error))
                failing = True
                self._unwritten.set()
                await asyncio.sleep(RETRY_SECONDS)

    async def _write(self, key: str) -> None:
        value = self._wanted.values.get(key)
        if value is not None:  # the job may have been forgotten meanwhile
            await self._leader_key.write(Op.put(key, value))
            self._stored.put(key, value)
