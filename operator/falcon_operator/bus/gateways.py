"""Keep a stream to each gateway that etcd or the API server names (``census``).

A gateway that neither names any more is followed for as long as it answers on its stream. A stream that
ends is made again, for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

import structlog

from falcon_core.times import SILENCE_SECONDS
from falcon_gateway import Batch, Desired, Leader, OperatorClient, Refused, Tls
from falcon_operator.base.ports import Clock
from falcon_operator.bus import census
from falcon_operator.bus.census import Pods, Registration

CHECK_SECONDS = 0.5
REFUSED_SECONDS = 2.0  # before a gateway that has refused the stream is asked again
log = structlog.get_logger(__name__)


class _Link:
    """The stream to one gateway, repeated until it is cancelled."""

    def __init__(self, gateway: str, address: str, make: Callable[[str], OperatorClient]) -> None:
        self.gateway = gateway
        self.address = address
        self._make = make
        self._client = make(address)
        self.task: asyncio.Task[None] | None = None

    def answers(self, now: float) -> bool:
        """Check whether all that the gateway holds has come, and its newest answer lately."""
        client = self._client
        if client.hello is None or client.hello.gateway != self.gateway:  # the address belongs to another gateway now
            return False
        return client.complete and client.answered_at is not None and now - client.answered_at <= SILENCE_SECONDS

    @property
    def incarnation(self) -> int:
        """Return when the process began that answers (unix ns); 0 while none does."""
        return 0 if self._client.hello is None else self._client.hello.incarnation

    async def run(self) -> None:
        while True:
            try:
                await self._client.run()
            except Refused as error:
                log.warning("gateway refuses the operator", gateway=self.gateway, error=str(error))
            await asyncio.sleep(REFUSED_SECONDS)
            self._client = self._make(self.address)


class Gateways:
    """All gateways. ``on_batch`` gets every batch of every stream; ``leader`` is asked for each new stream.

    ``pods`` returns the gateways' pods as the API server last named them, None before it has.
    The clock has to be that of the streams: ``time.monotonic``.
    """

    def __init__(
        self,
        tls: Tls,
        desired: Desired,
        leader: Callable[[], Leader],
        on_batch: Callable[[Batch], None],
        pods: Callable[[], Pods | None],
        clock: Clock,
    ) -> None:
        self._tls = tls
        self._desired = desired
        self._leader = leader
        self._on_batch = on_batch
        self._pods = pods
        self._clock = clock
        self._registered: dict[str, Registration] = {}
        self._incarnations: dict[str, int] = {}  # as last registered, also of gateways whose key is gone
        self._links: dict[str, _Link] = {}
        self._changed = asyncio.Event()
        self._epoch = 0

    # -- what etcd says ----------------------------------------------------------------------------------------------

    def relist(self, registered: Mapping[str, Registration]) -> None:
        """Replace all gateways that etcd has named."""
        self._registered = dict(registered)
        self._incarnations |= {gateway: known.incarnation for gateway, known in registered.items()}
        self._changed.set()

    def register(self, gateway: str, registration: Registration) -> None:
        self.relist({**self._registered, gateway: registration})

    def unregister(self, gateway: str) -> None:
        self._registered.pop(gateway, None)
        self._changed.set()

    # -- who is heard ------------------------------------------------------------------------------------------------

    @property
    def registered(self) -> frozenset[str]:
        return frozenset(self._registered)

    @property
    def answering(self) -> frozenset[str]:
        """Return the gateways whose streams work."""
        now = self._clock.monotonic()
        return frozenset(gateway for gateway, link in self._links.items() if link.answers(now))

    @property
    def awaited(self) -> frozenset[str]:
        """Return the gateways whose streams have to work."""
        return census.awaited(self._registered, self._pods())

    @property
    def all_answer(self) -> bool:
        """Check whether any gateway answers on its stream, and each that is awaited."""
        answering = self.answering
        return bool(answering) and self.awaited <= answering

    def heard(self, etcd_healthy: bool, newest: Mapping[str, int]) -> dict[str, int]:
        """Return the gateways that are heard, by stream or by an etcd that is healthy, with their incarnations.

        ``newest`` are the incarnations whose batches have come. Of what etcd, a batch and the stream say the newest
        process counts.
        """
        streams = {gateway: self._links[gateway].incarnation for gateway in self.answering}
        heard = streams.keys() | (self._registered.keys() if etcd_healthy else frozenset())
        sources = (self._incarnations, newest, streams)
        return {gateway: max(source.get(gateway, 0) for source in sources) for gateway in heard}

    # -- streams -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep one stream to each gateway. Raises ``election.LeadershipLost`` when this operator does not lead."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                addresses = census.addresses(self._registered, self._pods())
                # Streams that are out of date end first, so that the loop below makes them again at their new
                # address.
                self._end_links(addresses)
                for gateway, address in addresses.items():
                    if gateway not in self._links:
                        link = _Link(gateway, address, self._client)
                        link.task = tasks.create_task(link.run(), name=f"gateway {gateway}")
                        self._links[gateway] = link
                        log.info("gateway found", gateway=gateway, address=address)
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    # A change of the gateways' pods does not wake this loop, so it looks at them in this rhythm.
                    async with asyncio.timeout(CHECK_SECONDS):
                        await self._changed.wait()

    def _client(self, address: str) -> OperatorClient:
        return OperatorClient(address, self._tls, self._desired, self._leader(), self._on_batch)

    def _end_links(self, addresses: Mapping[str, str]) -> None:
        """End the streams to gateways that are gone or have moved, and all streams of an earlier epoch."""
        now, epoch = self._clock.monotonic(), self._leader().epoch
        for gateway, link in list(self._links.items()):
            address = addresses.get(gateway)
            if address is None:
                # etcd may be away, and with it the gateway's registration. A stream that answers proves more.
                over = not link.answers(now)
            else:
                # A stream carries the epoch under which it was opened, and gateways follow the highest epoch.
                over = address != link.address or epoch != self._epoch
            if over:
                assert link.task is not None  # set where the link was made
                link.task.cancel()
                del self._links[gateway]
                if address is None:
                    log.info("gateway gone", gateway=gateway)
        self._epoch = epoch
