"""Keep the agent's stream: reports and beats up, commands and receipts down; it is opened again for ever.

The newest report is state: it replaces an older one that was not sent yet, and is sent again at the beginning of each
stream, since a new gateway does not have it. A chunk of series is sent once, after the report, or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from falcon_gateway._proto import gateway_pb2 as pb
from falcon_gateway._stream import LinkError, Rpc, Stream, Tls, both, forever

_log = logging.getLogger("falcon_gateway")
PROTOCOL: Final = 1
AGENT: Final = Rpc("/falcon.gateway.v1.AgentLink/Agent", pb.FromAgent, pb.ToAgent)
_AgentStream = Stream[pb.FromAgent, pb.ToAgent]


@dataclass(frozen=True, slots=True)
class Pod:
    """The pod for which an agent reports."""

    namespace: str
    job: str
    pod_uid: str


@dataclass(slots=True)
class _Newest:
    """The newest report, and what of it is still to be sent."""

    payload: bytes
    urgent: bool
    sent: bool = False


class AgentClient:
    """One agent's connection to whichever of the gateways answers.

    ``endpoints``: host:port; the first is chosen by chance. ``on_command`` is called with the newest command of each
    name at the beginning of each stream, and with each newer one.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        tls: Tls,
        pod: Pod,
        on_command: Callable[[pb.Command], None],
        *,
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._endpoints = itertools.cycle(random.sample(list(endpoints), len(endpoints)))
        self._tls = tls
        self._pod = pod
        self._on_command = on_command
        self._unix_ns = unix_ns
        self._session = 0
        self._served = False  # the last attempt was welcomed
        self._welcome: pb.Welcome | None = None
        self._newest: _Newest | None = None
        self._news = asyncio.Event()
        self._hold_until = 0.0  # monotonic; ordinary reports wait until then
        self._chunk: bytes | None = None  # of series, not sent yet
        self.largest_series_bytes = 0  # what the gateway takes at most; 0 while no service reads series
        self.receipt: pb.Receipt | None = None  # of the present stream's newest report
        self.trouble = ""  # why the last attempt ended; "" while a gateway serves this agent

    @property
    def gateway(self) -> str:
        """Return the id of the gateway that serves this agent now; "" while none does."""
        return self._welcome.gateway if self._welcome is not None else ""

    @property
    def largest_report_bytes(self) -> int | None:
        """Return what the gateway takes at most; None while no gateway serves this agent."""
        return self._welcome.largest_report_bytes if self._welcome is not None else None

    def report(self, payload: bytes, *, urgent: bool = False) -> None:
        """Take the pod's newest report; it leaves as soon as the gateway may have it.

        A report beyond :attr:`largest_report_bytes` is logged and never sent: it would end the stream.
        """
        waiting = self._newest
        urgent = urgent or (waiting is not None and waiting.urgent and not waiting.sent)
        self._newest = _Newest(payload, urgent)
        self._news.set()

    def series(self, payload: bytes) -> None:
        """Take a chunk of the pod's series. It replaces one that was not sent yet.

        It is dropped while no service reads series, where the gateway would not take as much, and when the stream ends.
        """
        if len(payload) <= self.largest_series_bytes:
            self._chunk = payload
            self._news.set()

    async def run(self) -> NoReturn:
        """Serve until cancelled.

        Raises:
            Refused: The certificate is not this job's, or the gateway is of another release.
        """
        await forever(self._attempt, lambda: self._served)

    async def _attempt(self) -> NoReturn:
        # Sessions grow, also across restarts of the agent, so that the newest stream of a pod wins.
        self._session = max(self._unix_ns(), self._session + 1)
        self._served, self.receipt = False, None
        try:
            async with Stream(AGENT, next(self._endpoints), self._tls) as stream:
                hello = pb.Hello(
                    namespace=self._pod.namespace,
                    job=self._pod.job,
                    pod_uid=self._pod.pod_uid,
                    session=self._session,
                    protocol=PROTOCOL,
                )
                await stream.send(pb.FromAgent(hello=hello))
                self._welcome = (await stream.receive()).welcome
                self._served, self.trouble = True, ""
                # The gateway may be another one, which does not have the newest report.
                if self._newest is not None:
                    self._newest.sent = False
                reading, talking = self._read(stream), self._talk(stream, self._welcome.beat_ms / 1000)
                await both(reading, talking)
        except LinkError as error:
            self.trouble = str(error)
            raise
        finally:
            self._welcome = None
            # An earlier gateway does not know series, and would end the stream: the next one says whether it wants any.
            self.largest_series_bytes, self._chunk = 0, None

    async def _read(self, stream: _AgentStream) -> NoReturn:
        while True:
            message = await stream.receive()
            if message.HasField("command"):
                self._on_command(message.command)
            elif message.HasField("series_wanted"):
                self.largest_series_bytes = message.series_wanted.largest_bytes
            elif message.HasField("receipt"):
                self.receipt = message.receipt
                if message.receipt.thinned:
                    self._hold_until = time.monotonic() + message.receipt.retry_after_ms / 1000

    async def _talk(self, stream: _AgentStream, beat_seconds: float) -> NoReturn:
        """Send the newest report whenever there is one, and series after it; else a beat."""
        for sequence in itertools.count(1):
            report = self._due()
            if report is not None:
                report.sent = True
                await stream.send(
                    pb.FromAgent(report=pb.Report(sequence=sequence, urgent=report.urgent, payload=report.payload))
                )
            chunk, self._chunk = self._chunk, None
            if chunk is not None and len(chunk) <= self.largest_series_bytes:
                await stream.send(pb.FromAgent(series=pb.Series(payload=chunk)))
            elif report is None:
                await stream.send(pb.FromAgent(beat=pb.Beat()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(beat_seconds):
                    await self._news.wait()
            self._news.clear()
        raise AssertionError("numbers do not end")

    def _due(self) -> _Newest | None:
        newest, largest = self._newest, self.largest_report_bytes
        if newest is None or newest.sent:
            return None
        if largest is not None and len(newest.payload) > largest:
            newest.sent = True
            _log.error("a report of %d bytes is not sent: the gateway takes %d", len(newest.payload), largest)
            return None
        return newest if newest.urgent or time.monotonic() >= self._hold_until else None
