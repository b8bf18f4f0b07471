"""Live one life of the operator's process: settings, logs, the election, and then either waiting or leading."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import structlog

from falcon_core.errors.judge import platform_judge
from falcon_operator.base import logs
from falcon_operator.base.background_loop import Aside
from falcon_operator.base.clock import SystemClock
from falcon_operator.base.metrics import Metrics
from falcon_operator.base.ports import LeadershipLost, lost_leadership
from falcon_operator.base.settings import EXIT_CONFIG, Settings, SettingsError, load
from falcon_operator.bus import certs
from falcon_operator.cluster.certificates.authorities import Authorities
from falcon_operator.cluster.certificates.serving import ServedCertificate, ServingCertificates
from falcon_operator.cluster.certificates.webhook import WebhookCertificates
from falcon_operator.cluster.client import KubeClient
from falcon_operator.cluster.gateway_pods import GatewayPods
from falcon_operator.cluster.leases import KubeLeases
from falcon_operator.cluster.model_map import ModelMap
from falcon_operator.cluster.nodes import Breaker
from falcon_operator.cluster.pace import Paces
from falcon_operator.cluster.recorder import Recorder
from falcon_operator.cluster.transport import Transport, load_configuration
from falcon_operator.runtime import definition_check, garbage_collector, health
from falcon_operator.runtime.election import Election
from falcon_operator.runtime.evictions import Evictions
from falcon_operator.runtime.leader import Leader
from falcon_operator.runtime.webhook import Webhook

EXIT_FAILED = 1
log = structlog.get_logger("falcon_operator")


async def operate(settings: Settings) -> None:
    """Run the operator until a signal. Raises when it cannot go on."""
    clock = SystemClock()
    metrics = Metrics()
    configuration = await load_configuration()
    stop = asyncio.Event()

    def handle_signals() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)

    handle_signals()
    # A connection belongs to one event loop, and the election has a loop of its own.
    renewals = Transport(configuration, lambda: election.assert_leading())  # of the election's own event loop
    election = Election(KubeLeases(renewals, settings.namespace), settings.identity, clock)
    transport = Transport(configuration, election.assert_leading, Paces(clock))
    kube = KubeClient(
        transport,
        clock,
        Breaker(limit=settings.fence_limit, window_seconds=settings.fence_window_seconds),
        instance=settings.identity,
        namespace=settings.namespace,
        watch_namespaces=settings.watch_namespaces,
        spare_annotations=settings.spare_annotations,
        on_interruption=metrics.watch_interrupted,
    )

    async def lead(aside: Aside, folder: Path) -> None:
        # Before the election: an operator that may not run must not take the lease from one that runs well.
        await definition_check.require_current(transport)
        await aside.run(election.acquire())
        metrics.leading = True
        recorder = Recorder(transport, settings.namespace, settings.identity, clock)
        authorities = Authorities(settings, transport, recorder, clock, folder)
        gateway_pods = GatewayPods(transport, settings.namespace, settings.gateway_selector, metrics.watch_interrupted)
        leadership = _Leadership(election, aside)
        name = settings.anomaly_models
        shelf = ModelMap(transport, settings.namespace, name) if name else None
        leader = Leader(settings, configuration, kube, authorities, gateway_pods, leadership, metrics, clock, shelf)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(aside.run(_or_die(election)), name="election")
            tasks.create_task(leader.run(handle_signals), name="leader")

    def missing() -> str:
        return "" if election.in_touch else "the API server has not answered yet"

    def notes() -> Sequence[str]:
        return metrics.readings().bus.notes if metrics.readings is not None else ()

    async def answer_evictions(folder: Path) -> None:
        """Serve the webhook, whether or not this replica leads. Runs in the webhook's event loop."""
        http = Transport(configuration, election.assert_leading)
        judge = platform_judge(settings.errors)
        answers = Evictions(
            http, lambda: election.operator_lives, settings.departure_taints, judge, clock, metrics.eviction
        )
        certificates = WebhookCertificates(
            http,
            settings.namespace,
            settings.gateway_secret_prefix,
            settings.webhook_names,
            settings.webhook_configuration,
        )
        metrics.port_expiries.append(certificates.expiries)
        certificate = ServedCertificate(certificates, lambda: election.leading, clock, folder)
        try:
            await Webhook(settings.webhook_port, certificate, answers).run()
        finally:
            await http.close()

    def secured(folder: Path) -> health.Secured | None:
        """Return the port of metrics for clients with a token; None where every client may read them."""
        if not settings.metrics_reader:
            return None
        prefix = f"{settings.gateway_secret_prefix}-metrics"
        pairs = ServingCertificates(transport, settings.namespace, prefix, settings.metrics_names, certs.METRICS)
        metrics.port_expiries.append(pairs.expiries)
        certificate = ServedCertificate(pairs, lambda: election.leading, clock, folder)
        return health.Secured(settings.metrics_tls_port, certificate, health.access(transport, settings.metrics_reader))

    with tempfile.TemporaryDirectory(prefix="falcon-") as folder:
        async with (
            Aside("election") as aside,
            Aside("evictions") as judging,
            health.serving(settings.metrics_port, metrics.registry, missing, notes, secured(Path(folder) / "metrics")),
        ):
            if settings.webhook_configuration:
                webhook = asyncio.create_task(judging.run(answer_evictions(Path(folder) / "webhook")), name="webhook")
                webhook.add_done_callback(_log_end)
            life = asyncio.create_task(lead(aside, Path(folder)), name="life")
            stopped = asyncio.create_task(stop.wait(), name="stop")
            try:
                await asyncio.wait({life, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if life.done():
                    # Raise what ended the life; at a signal there is nothing to raise.
                    life.result()
                log.info("stopping")
            finally:
                stopped.cancel()
                life.cancel()
                await asyncio.wait({life})
                # Give the Lease back after the last task has ended: the next leader may begin at once.
                await aside.run(election.release())
                await aside.run(renewals.close())
                await transport.close()


def _log_end(webhook: asyncio.Task[None]) -> None:
    """Say why the webhook ended: evictions are admitted from then on, and everything else goes on."""
    if not webhook.cancelled() and (error := webhook.exception()) is not None:
        log.error("the webhook ends", error=str(error) or type(error).__name__)


class _Leadership:
    """The election as the leader's event loop uses it."""

    def __init__(self, election: Election, aside: Aside) -> None:
        self._election = election
        self._aside = aside

    @property
    def epoch(self) -> int:
        return self._election.epoch

    async def raise_epoch(self, least: int) -> int:
        return await self._aside.run(self._election.raise_epoch(least))


async def _or_die(election: Election) -> None:
    """Keep the lease; end the process at once when the lease is lost.

    Another candidate may lead from then on, and an orderly end would take time.
    """
    try:
        await election.keep()
    except LeadershipLost as error:
        log.error("leadership lost", error=str(error))
        sys.stdout.flush()
        os._exit(EXIT_FAILED)


def live() -> int:
    """Read the settings and operate until the process ends. Return its exit code (see ``__main__``)."""
    try:
        settings = load()
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_CONFIG
    logs.configure(settings.log_level)
    # After all imports, so that the modules' objects are left out of later searches.
    garbage_collector.settle()
    try:
        asyncio.run(operate(settings))
    except definition_check.DefinitionError as error:
        log.error("the definition of TrainingRun does not fit", error=str(error))
        return EXIT_CONFIG
    except Exception as error:
        lost = lost_leadership(error)
        if lost is None:
            log.exception("failed")
        else:
            log.error("leadership lost", error=str(lost))
        return EXIT_FAILED
    return 0
