"""Live one life of the anomaly service: settings, logs, streams, and one thread that reads series and looks at jobs."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import structlog

from falcon_anomaly import server
from falcon_anomaly.gateways import Gateways
from falcon_anomaly.inbox import Arrival, Inbox
from falcon_anomaly.jobs import Jobs
from falcon_anomaly.metrics import Expiry, Metrics
from falcon_anomaly.prometheus.rounds import Rounds
from falcon_anomaly.queries.joining import Joined, Known
from falcon_anomaly.settings import EXIT_CONFIG, Settings, SettingsError, load
from falcon_core.wire.lessons import decode_lesson, encode_learned
from falcon_core.wire.overview import encode_overview
from falcon_core.wire.verdicts import encode_answer
from falcon_gateway import Subscriber, Tls
from falcon_listen.access import Access
from falcon_listen.api_server import ApiServer

EXIT_FAILED: Final = 1
TURN_SECONDS: Final = 1.0
MOST_CHUNKS: Final = 300  # read in a turn: those of 18,000 pods, or a flood that takes a fifth of a core
log = structlog.get_logger("falcon_anomaly")


class _Life:
    """One life: what arrives, what is known of it, and what the operator gets."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._inbox = Inbox()
        self._jobs = Jobs(settings.most_bytes, time.thread_time)
        self._one = asyncio.Lock()  # held by the thread that reads or writes boards: never two of them
        self._answer = encode_answer(self._jobs.answer(time.monotonic()))
        ca, cert, key = (settings.tls_dir / name for name in server.FILES)
        tls = Tls(ca, cert, key, settings.gateway_name)
        self._gateways = Gateways(
            settings.gateways, lambda address: Subscriber(address, tls, socket.gethostname()), self._inbox.put
        )
        wanted = settings.prometheus
        self._rounds = None if wanted is None else Rounds(wanted, settings.prometheus_dir, self._pods, self._queried)
        self._certificate = server.Certificate(settings.tls_dir)
        self._metrics = Metrics(
            self._jobs.figures,
            lambda: self._gateways.answering,
            lambda: self._inbox.dropped + self._gateways.dropped,
            {} if self._rounds is None else self._rounds.states,
            Expiry(settings.tls_secret, lambda: self._certificate.expires_unix),
        )

    async def live(self) -> None:
        """Serve until cancelled. Raises when something fails for good."""
        registry, access = self._metrics.registry, self._access()
        pages = server.Pages(lambda: self._answer, self._overview, self._lesson, registry, self._missing, access)
        wanted = server.Ports(self._settings.port, self._settings.metrics_port, self._settings.metrics_tls_port)
        async with server.serving(wanted, self._certificate, pages) as ports:
            log.info("serving", port=ports.secured, metrics_port=ports.plain)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._gateways.run(), name="gateways")
                tasks.create_task(self._look(), name="looks")
                if self._rounds is not None:
                    tasks.create_task(self._rounds.run(), name="queries of Prometheus")

    def _access(self) -> Access | None:
        """Return who may read metrics; None where every client may. Raises OSError outside a pod."""
        if not self._settings.metrics_reader:
            return None
        api = ApiServer(os.environ, self._settings.service_account_dir)

        def failed(why: str) -> None:
            log.warning("tokens of metrics cannot be checked", error=why)

        return Access(api.post, self._settings.metrics_reader, failed=failed)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(TURN_SECONDS)
            async with self._one:
                self._answer = await asyncio.to_thread(self._turn, self._inbox.take(MOST_CHUNKS))

    async def _pods(self) -> dict[str, Known]:
        async with self._one:
            return await asyncio.to_thread(self._jobs.pods)

    async def _queried(self, name: str, ends: npt.NDArray[np.float64], found: Mapping[str, Joined]) -> None:
        """Put what Prometheus has answered onto the boards."""
        async with self._one:
            await asyncio.to_thread(self._jobs.take_queried, name, ends, found)

    async def _overview(self, uid: str, seconds: int) -> bytes | None:
        """Return the encoded overview of a job's series; None where there are none."""
        async with self._one:
            found = await asyncio.to_thread(self._jobs.overview, uid, float(seconds), time.monotonic())
        return None if found is None else encode_overview(found)

    async def _lesson(self, raw: bytes) -> bytes:
        """Return the encoded answer to a lesson of the operator. Raises LessonError for what is none."""

        def learned() -> bytes:
            return encode_learned(self._jobs.lesson(decode_lesson(raw), time.monotonic()))

        async with self._one:
            return await asyncio.to_thread(learned)

    def _turn(self, arrivals: list[Arrival]) -> bytes:
        """Read what has arrived, look at the jobs that are due, and return the operator's answer. Runs in a thread."""
        for arrival in arrivals:
            self._jobs.take(arrival)
        now = time.monotonic()
        self._jobs.look(now)
        return encode_answer(self._jobs.answer(now))

    def _missing(self) -> str:
        return "" if self._gateways.answering else "no gateway answers yet"


async def serve(settings: Settings) -> None:
    """Run the service until a signal. Raises when it cannot go on."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    life = asyncio.create_task(_Life(settings).live(), name="life")
    stopped = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait({life, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if life.done():
            life.result()  # raises what ended it
        log.info("stopping")
    finally:
        stopped.cancel()
        life.cancel()
        await asyncio.wait({life})


def live() -> int:
    """Read the settings and serve until the process ends. Return its exit code (see ``__main__``)."""
    try:
        settings = load()
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_CONFIG
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(settings.log_level.upper())),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
    )
    try:
        asyncio.run(serve(settings))
    except Exception:
        log.exception("failed")
        return EXIT_FAILED
    return 0
