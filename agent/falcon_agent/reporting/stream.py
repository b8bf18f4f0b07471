"""Send the pod's newest report to the gateway, and receive the operator's commands from it.

``falcon_gateway.AgentClient`` keeps the stream, which is also the pod's sign of life, and sends the newest report to
each gateway that it reaches. While it reaches none, a window of reports is lost and nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import msgspec
import structlog

from falcon_agent.settings import Settings
from falcon_core.wire.launcher.imports import Imports
from falcon_core.wire.measurement.probe import ProbeOrder
from falcon_core.wire.reporting.messages import DetailRequest, Plan, Summary
from falcon_core.wire.reporting.microbatches import MicrobatchOrder
from falcon_core.wire.reporting.reports import encode_summary
from falcon_core.wire.saves.peers import Peers
from falcon_gateway import AgentClient, Command, Pod, Refused, Tls

REFUSED_SECONDS: Final = 30.0  # until the next try; a refusal lasts until certificate, gateway or agent is changed
QUIET_SECONDS: Final = 5.0  # without a gateway, before it is logged: a change of gateways is no trouble
_LOOK_SECONDS: Final = 0.5
_log = structlog.get_logger()
_Message = TypeVar("_Message", Plan, DetailRequest, MicrobatchOrder, Peers, Imports, ProbeOrder)


class Reporter:
    """The agent's connection. The callbacks get every command of their kind that is new to this stream."""

    def __init__(
        self,
        settings: Settings,
        on_plan: Callable[[Plan], None],
        on_request: Callable[[DetailRequest], None],
        on_order: Callable[[MicrobatchOrder], None],
        on_peers: Callable[[Peers], None],
        on_imports: Callable[[Imports], None],
        on_probe: Callable[[ProbeOrder], None],
    ) -> None:
        config = settings.config
        folder = Path(config.gateway_tls_dir)
        tls = Tls(ca=folder / "ca.crt", cert=folder / "tls.crt", key=folder / "tls.key")
        pod = Pod(config.namespace, config.job, settings.pod_uid)
        self._client = AgentClient(config.gateways, tls, pod, self._take)
        self._on_plan = on_plan
        self._on_request = on_request
        self._on_peers = on_peers
        self._on_imports = on_imports
        self._on_order = on_order
        self._on_probe = on_probe

    def report(self, summary: Summary, detailed: Collection[int], *, urgent: bool) -> None:
        """Hand over this pod's report, with the detail of some ranks. It replaces a report that has not left yet."""
        self._client.report(encode_summary(summary, detailed), urgent=urgent)

    @property
    def reads_series(self) -> bool:
        """Return whether a service reads series at the gateway that serves this agent."""
        return self._client.largest_series_bytes > 0

    def send_series(self, chunk: bytes) -> None:
        """Hand over a chunk of series. It leaves after the newest report, or not at all."""
        self._client.series(chunk)

    async def run(self) -> NoReturn:
        """Serve until cancelled. An agent that is refused goes on tracking the training, and logs why it is refused."""
        while True:
            try:
                await self._client.run()
            except Refused as refusal:
                _log.error("the gateway refuses this agent; trying again", error=str(refusal))
            await asyncio.sleep(REFUSED_SECONDS)

    async def log_connection(self) -> NoReturn:
        """Log which gateway serves this agent, and why none has done so for a while."""
        known, lost_at = "", time.monotonic()
        silent = False  # whether it has been logged that no gateway answers
        while True:
            gateway, now = self._client.gateway, time.monotonic()
            if gateway:
                if gateway != known or silent:
                    _log.info("connected", gateway=gateway)
                known, lost_at, silent = gateway, now, False
            elif not silent and now - lost_at > QUIET_SECONDS:
                silent = True
                _log.warning("no gateway takes this pod's reports; trying on", error=self._client.trouble)
            await asyncio.sleep(_LOOK_SECONDS)

    def _take(self, command: Command) -> None:
        """Hand on a command. Ignore a name that this release does not know: a newer operator sent it."""
        match command.name:
            case "plan":
                _hand_on(command.payload, Plan, self._on_plan)
            case "detail":
                _hand_on(command.payload, DetailRequest, self._on_request)
            case "peers":
                _hand_on(command.payload, Peers, self._on_peers)
            case "imports":
                _hand_on(command.payload, Imports, self._on_imports)
            case "microbatches":
                _hand_on(command.payload, MicrobatchOrder, self._on_order)
            case "probe":
                _hand_on(command.payload, ProbeOrder, self._on_probe)


def _hand_on(raw: bytes, kind: type[_Message], take: Callable[[_Message], None]) -> None:
    try:
        message = msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        _log.error("a command that cannot be read is ignored: are operator and agent of one release?", error=str(error))
        return
    take(message)
