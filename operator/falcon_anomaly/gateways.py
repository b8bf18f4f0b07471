"""Keep a stream to each gateway that the name of their headless Service leads to.

The service has no rights in the cluster, so it finds the gateways by their name alone. A gateway whose address the name
no longer has is followed until its stream ends.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing

import structlog

from falcon_anomaly.inbox import Arrival
from falcon_gateway import Chunk, Refused, Subscriber

LOOK_SECONDS = 5.0  # between two look-ups of the name
log = structlog.get_logger("falcon_anomaly")


class _Link:
    """The stream to one gateway."""

    def __init__(self, subscriber: Subscriber, task: asyncio.Task[None]) -> None:
        self.subscriber = subscriber
        self.task = task

    @property
    def works(self) -> bool:
        return self.subscriber.hello is not None


class Gateways:
    """All gateways behind ``services`` (host:port each).

    ``make`` returns the client of one address; ``on_arrival`` gets every chunk.
    """

    def __init__(
        self, services: Sequence[str], make: Callable[[str], Subscriber], on_arrival: Callable[[Arrival], None]
    ) -> None:
        self._services = services
        self._make = make
        self._on_arrival = on_arrival
        self._links: dict[str, _Link] = {}
        self._dropped = 0  # by gateways that are gone
        self._refusing: set[str] = set()  # addresses whose refusal is in the log

    @property
    def answering(self) -> int:
        """Return the number of gateways whose streams work."""
        return sum(link.works for link in self._links.values())

    @property
    def dropped(self) -> int:
        """Return how many chunks the gateways have dropped because they were read too slowly."""
        return self._dropped + sum(link.subscriber.dropped for link in self._links.values())

    async def run(self) -> None:
        """Follow all gateways until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                addresses = await self._addresses()
                if addresses is not None:
                    self._follow(addresses, tasks)
                await asyncio.sleep(LOOK_SECONDS)

    async def _addresses(self) -> set[str] | None:
        """Return the gateways' addresses; None where a name cannot be looked up now."""
        found: set[str] = set()
        for service in self._services:
            host, _, port = service.rpartition(":")
            try:
                entries = await asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
            except OSError as error:
                log.debug("gateways not found", name=host, error=str(error))
                return None
            ips = (str(address[0]) for *_, address in entries)
            found |= {f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip in ips}
        return found

    def _follow(self, addresses: set[str], tasks: asyncio.TaskGroup) -> None:
        for address, link in list(self._links.items()):
            if link.works:
                self._refusing.discard(address)
            # A name that is out of date says less than a stream that works.
            if link.task.done() or (address not in addresses and not link.works):
                link.task.cancel()
                self._dropped += link.subscriber.dropped
                del self._links[address]
        self._refusing &= addresses
        for address in addresses - self._links.keys():
            subscriber = self._make(address)
            task = tasks.create_task(self._read(address, subscriber), name=f"gateway {address}")
            self._links[address] = _Link(subscriber, task)
            if address not in self._refusing:
                log.info("gateway found", address=address)

    async def _read(self, address: str, subscriber: Subscriber) -> None:
        """Read one stream until it is refused; the next look-up begins it again."""
        try:
            async with aclosing(subscriber.chunks()) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    self._on_arrival(_arrival(chunk))
        except Refused as error:
            # A gateway of an earlier release refuses each try, for as long as an upgrade takes.
            if address not in self._refusing:
                log.warning("gateway refuses the anomaly service", address=address, error=str(error))
            self._refusing.add(address)


def _arrival(chunk: Chunk) -> Arrival:
    return Arrival(
        namespace=chunk.namespace,
        job=chunk.job,
        job_uid=chunk.job_uid,
        pod_uid=chunk.pod_uid,
        payload=chunk.payload,
        at=time.monotonic() - chunk.waited_ms / 1e3,
    )
