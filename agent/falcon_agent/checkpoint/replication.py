"""Replicate checkpoints: send this pod's to another pod, keep another pod's, and fetch a new pod's own.

All of this runs in a thread with a loop of its own: checksums and TLS of a large state would hold up what the agent's
loop has to see in time. Nothing here is needed for training: whatever fails is said in the report, and the ranks do
not wait for it.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from falcon_agent.files.untrusted import open_regular
from falcon_core.wire.agent_config import AgentConfig
from falcon_core.wire.saves.checkpoint import Loaded, Parts
from falcon_core.wire.saves.peers import MAX_REASON, CopiesReport, PeerPod, Peers

LOOK_SECONDS: Final = 0.2  # between two looks at the ranks' buffers: what a copy is late by
RETRY_SECONDS: Final = 1.0
PEERS_SECONDS: Final = 10.0  # until it is known who has copies; then the ranks start without
FETCH_SECONDS: Final = 300.0  # for all that is fetched: the other pods' ranks wait meanwhile
FETCH_TRIES: Final = 2  # of each copy, before an older one is fetched
# That copies may fail for while saves go on waiting. A rank gives a copy up after 20 s. The agent does so before that:
# what is copied after a long failure begins with what all ranks save then (``_begin``).
GRACE_SECONDS: Final = 15.0
PROGRESS_SECONDS: Final = 1.0  # between two notes, for ranks that wait, of how far a transfer is
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
        """Read it again if it has changed, and who is trusted, for the connections that are made from now on.

        A certificate that cannot be read is tried again at the next call; the former stays until then.
        """
        try:
            if (stamp := self._read_at()) != self._stamp:
                self.context = protocol.server_context(*credentials(self._folder))
                self._stamp = stamp
            self._unreadable = False
        except OSError as error:  # the files may be seen in the middle of their renewal
            if not self._unreadable:
                _log.warning("the job's renewed certificate cannot be read", error=str(error))
            self._unreadable = True

    def _read_at(self) -> list[int]:
        return [file.stat().st_mtime_ns for file in credentials(self._folder)]


Copied = tuple[int, int]  # the generation that wrote a checkpoint, and its sequence
OnCopied = Callable[[bool, Mapping[int, Copied], int], None]


class Copying:
    """The thread.

    ``on_copied`` gets whether copies are made, by rank what the holder has, and a number that grows with each byte that
    is sent. ``were_on``: an agent of this pod that has ended said that copies are made.
    """

    def __init__(
        self,
        store: Store,
        config: AgentConfig,
        *,
        pod_uid: str,
        on_copied: OnCopied,
        were_on: bool = False,
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
        # A failure that is soon over must not let ranks leave checkpoints behind that have no copy.
        self._on = were_on
        self._failing_since: float | None = None
        self._unwritable = False  # what is noted for the ranks
        self._born_ns = time.time_ns()
        self._copied: dict[int, Copied] = {}  # by rank: the checkpoint that the holder has
        self._first: dict[int, int] = {}  # by local rank: sequence from which on copies are of use
        self._turn = 0  # grows when the holder may have other copies than this agent knows
        self._holder = ""  # uid of the pod that has them
        self._sending: asyncio.Future[list[str]] | None = None
        self._noting: asyncio.Task[None] | None = None
        self._keepers: dict[int, str] = {}  # by rank: uid of the pod from which its checkpoints came
        self._fetched_for = 0  # the generation that began with them
        self._being_fetched: frozenset[int] = frozenset()  # ranks
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="falcon-copies", daemon=True)

    # -- called by the agent's loop ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin. The ranks' own buffers are there."""
        if self._on:
            self._note()  # an earlier agent's word of what is copied does not count any more
        self._thread.start()

    def take(self, newest: Peers) -> None:
        """Take over who keeps whose copies. What an earlier leader wanted is ignored."""
        known = self._peers
        if known is None or (newest.generation, newest.epoch) >= (known.generation, known.epoch):
            self._peers = newest
            own = newest.pod(self._pod_uid)
            if own is not None and own.holder != self._holder:
                self._holder = own.holder
                self._loop.call_soon_threadsafe(self._forget)

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
        # The ranks must not take for copied what a lost pod had, however long a transfer to it still takes.
        if generation > 1 and self._port:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._forgotten(), self._loop))
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
        return [parts.rank for parts in newest if self._copied.get(parts.rank) != _key(parts)]

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
        """Fill one rank's buffers with the newest checkpoints that the pods have of it.

        The buffers get their first pages together, at the end. An agent that restarts in between begins again, and does
        not take the half for the whole.
        """
        rank, buffers = first_rank + local_rank, self._store.buffers(local_rank)
        arrived: list[tuple[str, bytes]] = []  # pod, and first page of each buffer
        try:
            offers = await asyncio.gather(*(self._offered(pod, rank) for pod in sources))
            for pod, parts in chosen(zip(sources, offers, strict=True)):
                page = await self._fetch_copy(pod, parts, buffers[len(arrived)])
                if page is not None:
                    arrived.append((pod.uid, page))
                if len(arrived) == len(buffers):
                    break
        finally:
            for (uid, page), buffer in zip(arrived, buffers, strict=False):
                if _put_page(buffer, page):
                    self._keepers.setdefault(rank, uid)

    async def _offered(self, pod: PeerPod, rank: int) -> list[Parts]:
        """Return which copies of a rank a pod has; none where it cannot be asked."""
        size = self._store.buffer_bytes
        # After an exchange of roles this pod itself may hold the copies of its new role.
        if pod.uid == self._pod_uid:
            own = [copy.parts for copy in self._copies.files() if copy.parts is not None]
            return [parts for parts in own if parts.rank == rank and parts.end <= size]
        for _ in range(FETCH_TRIES):
            try:
                return await client.offered(self._peer(pod), rank, size)
            except (PeerError, OSError) as error:
                _log.warning("a pod does not say which copies it has", rank=rank, error=str(error))
        return []

    async def _fetch_copy(self, pod: PeerPod, parts: Parts, buffer: Path) -> bytes | None:
        """Fetch one copy into a buffer; return its first page, None where that failed."""
        for _ in range(FETCH_TRIES):
            try:
                if pod.uid == self._pod_uid:
                    return await local_source.take(self._copies.of(parts.rank), parts, buffer)
                return await client.fetch(self._peer(pod), parts, buffer)
            except (PeerError, OSError) as error:
                _log.warning("a copy could not be fetched", rank=parts.rank, step=parts.step, error=str(error))
        return None

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
            holder = Holder(self._copies, self._job_uid, lambda: certificate.context, self._wards, self._needed)
            self._host = await self._address()
            self._port = await holder.start(self._host)
            if self._on:
                self._begin_again()
            self._noting = self._loop.create_task(self._note_progress())
            while True:
                # The kubelet replaces the files of the Secret while the pod lives.
                certificate.renew()
                failure = await self._look()
                self._say(failure)
                await asyncio.sleep(RETRY_SECONDS if failure else LOOK_SECONDS)
        except Exception as error:  # noqa: BLE001 - training and the agent's other parts go on, whatever it is
            _log.exception("no more copies of checkpoints are made or kept here")
            self._port, self._on = 0, False
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
        self._pace.bytes_per_second = known.bytes_per_second
        if not self._on and (failure := await self._begin(holder)):
            return failure
        # Together, and not one after the other: the pace is the pod's, and a rank that waits costs the others nothing.
        local_ranks = range(self._store.ranks)
        self._sending = asyncio.gather(*(self._copy(holder, own.first_rank, each) for each in local_ranks))
        turn = self._turn
        try:
            failures = await self._sending
        except asyncio.CancelledError:
            if turn == self._turn:  # this thread ends
                raise
            return ""
        finally:
            self._sending = None
        return next(filter(None, failures), "")

    def _forget(self) -> None:
        """Forget what the holder has, and end transfers to it: another pod keeps the copies now, or ranks start."""
        self._turn += 1
        self._copied = {}
        if self._sending is not None:
            self._sending.cancel()
        self._note()

    async def _forgotten(self) -> None:
        self._forget()

    async def _begin(self, holder: PeerPod) -> str:
        """Let saves wait for copies from now on; return why no copies can be made yet.

        Until now ranks saved as fast as they could, and some may have left a checkpoint of now two saves behind before
        its copy is made. So only the newest of now, and what follows it, have a step in common with all ranks.
        """
        try:
            await client.reach(self._peer(holder))
        except (PeerError, OSError) as error:
            return str(error)
        # Until a copy has been made, the next failure ends it at once: one that lasts must not hold each save up.
        self._on, self._failing_since, self._why = True, -math.inf, ""
        self._begin_again()
        return ""

    def _begin_again(self) -> None:
        self._note()
        self._first = {each: self._store.committed(each) for each in range(self._store.ranks)}

    def _is_late(self, local_rank: int, sequence: int) -> bool:
        """Check whether a checkpoint is older than the first that ranks may not leave behind before it is copied."""
        # Where a rank's buffers were cleared since, its numbers begin again.
        return sequence < self._first.get(local_rank, -1) <= self._store.committed(local_rank)

    async def _copy(self, holder: PeerPod, first_rank: int, local_rank: int) -> str:
        """Copy a rank's newest checkpoint, unless the holder has it; return why it could not be copied."""
        newest = self._store.newest(local_rank)
        rank = first_rank + local_rank
        if newest is None or newest[1].rank != rank or self._copied.get(rank) == _key(newest[1]):
            return ""
        # The newer one gets its checksums now.
        if self._is_late(local_rank, newest[1].sequence):
            return ""
        try:
            if await client.put(self._peer(holder), newest[0], self._pace):
                self._copied[rank] = _key(newest[1])
                self._note()
        except (PeerError, OSError) as error:
            return str(error)
        return ""

    def _wards(self) -> frozenset[int]:
        return self._peers.wards(self._pod_uid) if self._peers is not None else frozenset()

    def _needed(self) -> frozenset[int]:
        """Return whose copies are still wanted though they are no wards.

        Until the generation's ranks have loaded these are all; then the pod's own ranks that have no checkpoint, since
        this pod may have kept those of its new role.
        """
        known = self._peers
        own = known.pod(self._pod_uid) if known is not None else None
        if known is None or own is None:
            return self._being_fetched
        # Another pod may be about to fetch the copies of any rank.
        if not self._store.began(known.generation):
            return frozenset(rank for pod in known.pods for rank in known.ranks_of(pod))
        return self._being_fetched.union(own.first_rank + local_rank for local_rank in self._lacking(own.first_rank))

    def _peer(self, pod: PeerPod) -> Peer:
        # The certificate is renewed while the agent runs: it is read for each transfer.
        context = protocol.client_context(*credentials(self._tls))
        return Peer(host=pod.host, port=pod.port, job_uid=self._job_uid, context=context)

    def _say(self, failure: str) -> None:
        if failure and failure != self._why:
            _log.warning("checkpoints are not copied to another pod", why=failure)
        self._why = failure
        now = time.monotonic()
        known = self._peers
        # Before the generation's ranks have loaded, a keeper takes no copies of other ranks than before (``_needed``).
        if not failure or (known is not None and not self._store.began(known.generation)):
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since > GRACE_SECONDS:
            self._on = False
        self._note()

    def _note(self) -> None:
        """Note for the ranks what is copied, and how far a transfer is."""
        try:
            self._on_copied(self._on, self._copied, self._born_ns + self._pace.taken_bytes)
            self._unwritable = False
        except OSError as error:  # a rank that sees nothing move gives the copy up
            if not self._unwritable:
                _log.warning("the ranks cannot be shown what is copied", error=str(error))
            self._unwritable = True

    async def _note_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            self._note()


def chosen(offers: Iterable[tuple[PeerPod, Sequence[Parts]]]) -> list[tuple[PeerPod, Parts]]:
    """Return which copies of a rank to fetch, those of most use first.

    What a later generation has saved is newer, whatever its step. After the newest comes the step before it, which may
    be the newest of other ranks: a pod that has just become the keeper may not have it, and the former keeper does.
    """
    found = sorted(((pod, parts) for pod, has in offers for parts in has), key=lambda each: _key(each[1]), reverse=True)
    if not found:
        return []
    newest = found[0][1]
    # A step that is not before the newest was left out when its ranks went back to an older one.
    before = [each for each in found if each[1].step < newest.step]
    again = [each for each in found if each[1].step >= newest.step]
    ordered = [again[0], *before, *again[1:]]
    firsts = {(parts.generation, parts.step): (pod, parts) for pod, parts in reversed(ordered)}
    distinct = [each for each in ordered if firsts[each[1].generation, each[1].step] == each]
    return [*distinct, *(each for each in ordered if each not in distinct)]


def _put_page(buffer: Path, page: bytes) -> bool:
    """Write a buffer's first page, and return True. False where that failed: the buffer holds nothing."""
    try:
        file = open_regular(buffer, os.O_RDWR)
        try:
            protocol.write_page(file, page)
        finally:
            os.close(file)
    except OSError as error:
        _log.warning("a copy that was fetched cannot be kept", buffer=str(buffer), error=str(error))
        return False
    return True


def _key(parts: Parts) -> Copied:
    return parts.generation, parts.sequence
