"""Replicate checkpoints: send this pod's to another pod, keep another pod's, and fetch a new pod's own.

All of this runs in a thread with a loop of its own: checksums and TLS of a large state would hold up what the agent's
loop has to see in time. Nothing here is needed for training: whatever fails is said in the report, and the ranks do
not wait for it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog

from falcon_agent.checkpoint import client, local_source, protocol
from falcon_agent.checkpoint.client import Peer
from falcon_agent.checkpoint.interface import NoAddressError, address_of
from falcon_agent.checkpoint.protocol import PeerError
from falcon_agent.checkpoint.server import Copies, Holder
from falcon_agent.checkpoint.store import Store
from falcon_core.wire.agent_config import AgentConfig
from falcon_core.wire.saves.checkpoint import Loaded
from falcon_core.wire.saves.peers import MAX_REASON, CopiesReport, PeerPod, Peers

LOOK_SECONDS: Final = 0.2  # between two looks at the ranks' buffers: what a copy is late by
RETRY_SECONDS: Final = 1.0
PEERS_SECONDS: Final = 10.0  # until it is known who has copies; then the ranks start without
FETCH_SECONDS: Final = 300.0  # for all that is fetched: the other pods' ranks wait meanwhile
LAST_SECONDS: Final = 120.0  # for what has no copy yet when the pod ends; its grace is over before that, mostly
IN_VAIN_SECONDS: Final = 3.0  # of it, where no copy can be made
_log = structlog.get_logger()


def credentials(folder: Path) -> tuple[Path, Path, Path]:
    """Return the files of a job's Secret with which agents know each other."""
    return folder / "jobs-ca.crt", folder / "tls.crt", folder / "tls.key"


class Certificate:
    """The server's certificate, which is renewed in place while the agent runs."""

    def __init__(self, folder: Path) -> None:
        """Read the job's Secret. Raises OSError."""
        self._folder = folder
        self._stamp = self._read_at()
        self._unreadable = False
        self.context = protocol.server_context(*credentials(folder))

    def renew(self) -> None:
        """Read it again if it has changed: connections that are made from now on see the new one.

        A certificate that cannot be read is tried again at the next call; the former stays until then.
        """
        try:
            if (stamp := self._read_at()) != self._stamp:
                ca, cert, key = credentials(self._folder)
                self.context.load_verify_locations(ca)
                self.context.load_cert_chain(cert, key)
                self._stamp = stamp
            self._unreadable = False
        except OSError as error:  # the files may be seen in the middle of their renewal
            if not self._unreadable:
                _log.warning("the job's renewed certificate cannot be read", error=str(error))
            self._unreadable = True

    def _read_at(self) -> list[int]:
        return [file.stat().st_mtime_ns for file in credentials(self._folder)]


class Copying:
    """The thread. ``on_copied`` gets whether copies are made, and by rank what has been copied, after each look."""

    def __init__(
        self,
        store: Store,
        config: AgentConfig,
        *,
        pod_uid: str,
        on_copied: Callable[[bool, Mapping[int, int]], None],
    ) -> None:
        """Keep copies in ``config.copies_dir``, and take them over ``config.copies_interface``."""
        self._store = store
        self._copies = Copies(Path(config.copies_dir), store.ranks, store.buffer_bytes)
        self._tls = Path(config.gateway_tls_dir)
        self._job_uid, self._pod_uid = config.job_uid, pod_uid
        self._on_copied = on_copied
        self._peers: Peers | None = None
        self._pace = protocol.Pace()
        self._interface = config.copies_interface
        self._host, self._port = "", 0
        self._why = "the copies' memory is being made"
        self._copied: dict[int, int] = {}  # by rank: the sequence of the newest checkpoint that the holder has
        self._first: dict[int, int] = {}  # by local rank: sequence from which on copies are of use
        self._holder = ""  # uid of the pod that has them
        self._keepers: dict[int, str] = {}  # by rank: uid of the pod from which its checkpoints came
        self._fetched_for = 0  # the generation that began with them
        self._being_fetched: frozenset[int] = frozenset()  # ranks
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="falcon-copies", daemon=True)

    # -- called by the agent's loop ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin. The ranks' own buffers are there."""
        self._thread.start()

    def take(self, newest: Peers) -> None:
        """Take over who keeps whose copies. What an earlier leader wanted is ignored."""
        known = self._peers
        if known is None or (newest.generation, newest.epoch) >= (known.generation, known.epoch):
            self._peers = newest

    @property
    def report(self) -> CopiesReport:
        """Return what the operator shall know."""
        return CopiesReport(self._port, self._copies.held(), self._why[:MAX_REASON], self._host)

    def origin(self, loaded: Loaded, generation: int) -> Loaded:
        """Say of what a rank has found in memory whether it came there from another pod, and from which."""
        keeper = self._keepers.get(loaded.rank, "") if generation == self._fetched_for else ""
        is_copy = bool(keeper) and loaded.source == "Memory"
        return msgspec.structs.replace(loaded, source="Copy", keeper=keeper) if is_copy else loaded

    async def fetched(self, generation: int, first_rank: int) -> None:
        """Fetch what pods have of this pod's ranks before a generation starts; return when that is over.

        Nothing is fetched for a rank that holds a checkpoint itself. However it ends, the ranks can start.
        """
        self._fetched_for = generation
        self._keepers = {}
        if generation > 1 and self._lacking(first_rank):
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._fetch(generation), self._loop))

    async def finished(self) -> None:
        """Wait, when the pod ends, until the holder has the ranks' newest checkpoints, or cannot get them.

        The kubelet ends the agent after the trainer, and kills it when the pod's grace is over.
        """
        began = time.monotonic()
        while missing := self._without_copy():
            waited = time.monotonic() - began
            if waited > (IN_VAIN_SECONDS if self._why else LAST_SECONDS):
                _log.warning("checkpoints are lost with the pod: they have no copy", ranks=missing, why=self._why)
                return
            await asyncio.sleep(0.05)

    def _without_copy(self) -> list[int]:
        """Return the ranks of which the holder has not the newest checkpoint."""
        newest = [
            parts for each in range(self._store.ranks) if (found := self._store.newest(each)) for parts in found[1:]
        ]
        return [parts.rank for parts in newest if self._copied.get(parts.rank) != parts.sequence]

    # -- fetching ----------------------------------------------------------------------------------------------------

    def _lacking(self, first_rank: int) -> list[int]:
        """Return the local ranks that hold no checkpoint of their own."""
        ranks = range(self._store.ranks)
        return [local_rank for local_rank in ranks if not self._store.holds(local_rank, first_rank + local_rank)]

    async def _fetch(self, generation: int) -> None:
        known = await self._await_peers(generation)
        own = known.pod(self._pod_uid) if known is not None else None
        if known is None or own is None:
            _log.warning("it is not known who has copies of this pod's checkpoints; the ranks start without")
            return
        # A pod without a port takes no connections: its agent is starting, or has no memory for copies.
        sources = [pod for uid in own.sources if (pod := known.pod(uid)) is not None and pod.port]
        if not sources:
            return
        began = time.monotonic()
        # Ranks that still have their own checkpoints need no copy.
        lacking = self._lacking(own.first_rank)
        self._being_fetched = frozenset(own.first_rank + local_rank for local_rank in lacking)
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                await asyncio.gather(*(self._fetch_rank(sources, own.first_rank, each) for each in lacking))
        except TimeoutError:
            _log.error("not all copies of this pod's checkpoints were fetched in time", seconds=FETCH_SECONDS)
        finally:
            self._being_fetched = frozenset()
        _log.info("copies fetched", ranks=sorted(self._keepers), seconds=round(time.monotonic() - began, 3))

    async def _await_peers(self, generation: int) -> Peers | None:
        deadline = time.monotonic() + PEERS_SECONDS
        while time.monotonic() < deadline:
            known = self._peers
            if known is not None and known.generation >= generation and known.phase == "Run":
                return known
            await asyncio.sleep(0.02)
        return None

    async def _fetch_rank(self, sources: list[PeerPod], first_rank: int, local_rank: int) -> None:
        """Fetch one rank's checkpoints from the first pod that gives any."""
        rank, buffers = first_rank + local_rank, self._store.buffers(local_rank)
        for pod in sources:
            try:
                # After an exchange of roles this pod itself may hold the copies of its new role.
                if pod.uid == self._pod_uid:
                    steps = await local_source.take(self._copies.of(rank), rank, buffers)
                else:
                    steps = await client.fetch(self._peer(pod), rank, buffers)
            except (PeerError, OSError) as error:
                _log.warning("a copy could not be fetched", rank=rank, error=str(error))
                continue
            if steps:
                self._keepers[rank] = pod.uid
                return

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        serving = self._loop.create_task(self._serve())
        self._loop.run_forever()
        serving.cancel()

    async def _serve(self) -> None:
        try:
            self._copies.make()
            certificate = Certificate(self._tls)
            # It lives as long as this does.
            holder = Holder(self._copies, self._job_uid, certificate.context, self._wards, self._needed)
            self._host = await self._address()
            self._port = await holder.start(self._host)
            while True:
                # The kubelet replaces the files of the Secret while the pod lives.
                certificate.renew()
                failure = await self._look()
                self._say(failure)
                await asyncio.sleep(RETRY_SECONDS if failure else LOOK_SECONDS)
        except Exception as error:  # noqa: BLE001 - training and the agent's other parts go on, whatever it is
            _log.exception("no more copies of checkpoints are made or kept here")
            self._port = 0
            self._say(f"{type(error).__name__}: {error}")

    async def _address(self) -> str:
        """Return the address at which copies are taken; "" for all. Wait for that of an interface that the job names.

        A network operator may add the interface after the pod's containers were started.
        """
        while self._interface:
            try:
                return address_of(self._interface)
            except NoAddressError as error:
                self._say(str(error))
                await asyncio.sleep(RETRY_SECONDS)
        return ""

    async def _look(self) -> str:
        """Copy what the ranks have saved since the last look; return why that is not possible, "" if it is."""
        known = self._peers
        own = known.pod(self._pod_uid) if known is not None else None
        if known is None or own is None:
            return "not known yet which pod keeps them"
        holder = known.pod(own.holder) if own.holder else None
        if holder is None:
            return "no other pod is there to keep them"
        if not holder.port or not holder.host:
            return f"the pod that is to keep them ({holder.uid}) does not take any yet"
        # Another pod is to keep the copies now, and it has none of them yet.
        if holder.uid != self._holder:
            self._holder, self._copied = holder.uid, {}
        self._pace.bytes_per_second = known.bytes_per_second
        if self._why and (failure := await self._begin(holder)):
            return failure
        # Together, and not one after the other: the pace is the pod's, and a rank that waits costs the others nothing.
        local_ranks = range(self._store.ranks)
        failures = await asyncio.gather(*(self._copy(holder, own.first_rank, each) for each in local_ranks))
        return next(filter(None, failures), "")

    async def _begin(self, holder: PeerPod) -> str:
        """Let saves wait for copies from now on; return why no copies can be made yet.

        Until now ranks saved as fast as they could, and some may have left a checkpoint of now two saves behind before
        its copy is made. So only the newest of now, and what follows it, have a step in common with all ranks.
        """
        try:
            await client.reach(self._peer(holder))
        except (PeerError, OSError) as error:
            return str(error)
        self._say("")
        self._first = {each: self._store.committed(each) for each in range(self._store.ranks)}
        return ""

    def _is_late(self, local_rank: int, sequence: int) -> bool:
        """Check whether a checkpoint is older than the first that ranks may not leave behind before it is copied."""
        # Where a rank's buffers were cleared since, its numbers begin again.
        return sequence < self._first.get(local_rank, -1) <= self._store.committed(local_rank)

    async def _copy(self, holder: PeerPod, first_rank: int, local_rank: int) -> str:
        """Copy a rank's newest checkpoint, unless the holder has it; return why it could not be copied."""
        newest = self._store.newest(local_rank)
        rank = first_rank + local_rank
        if newest is None or newest[1].rank != rank or self._copied.get(rank) == newest[1].sequence:
            return ""
        # The newer one gets its checksums now.
        if self._is_late(local_rank, newest[1].sequence):
            return ""
        try:
            if await client.put(self._peer(holder), newest[0], self._pace):
                self._copied[rank] = newest[1].sequence
        except (PeerError, OSError) as error:
            return str(error)
        return ""

    def _wards(self) -> frozenset[int]:
        return self._peers.wards(self._pod_uid) if self._peers is not None else frozenset()

    def _needed(self) -> frozenset[int]:
        """Return the pod's own ranks whose copies are still wanted: this pod may have kept those of its new role."""
        own = self._peers.pod(self._pod_uid) if self._peers is not None else None
        if own is None:
            return self._being_fetched
        return self._being_fetched.union(own.first_rank + local_rank for local_rank in self._lacking(own.first_rank))

    def _peer(self, pod: PeerPod) -> Peer:
        # The certificate is renewed while the agent runs: it is read for each transfer.
        context = protocol.client_context(*credentials(self._tls))
        return Peer(host=pod.host, port=pod.port, job_uid=self._job_uid, context=context)

    def _say(self, failure: str) -> None:
        if failure and failure != self._why:
            _log.warning("checkpoints are not copied to another pod", why=failure)
        self._why = failure
        self._on_copied(not failure, self._copied)
