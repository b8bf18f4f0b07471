"""Keep the certificates of the bus while this replica leads: renew them, and replace an authority without a gap.

A new authority is trusted together with the former one until all processes have read it (docs/adr/0162). Gateways,
agents and this process read their files again. etcd keeps the authorities that it read at its start: its members are
restarted, one at a time, and certificates by the new authority are made only when each has accepted one.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
from collections.abc import Sequence
from pathlib import Path

import structlog

from falcon_etcd import Client, EtcdError
from falcon_etcd import Tls as EtcdTls
from falcon_gateway import Tls as GatewayTls
from falcon_operator.base.ports import Clock, Conflict, NotFound, Rejected
from falcon_operator.base.settings import Settings
from falcon_operator.bus import certs, tls_files
from falcon_operator.bus.certs import Pair
from falcon_operator.cluster.certificates.etcd_pods import EtcdPod, EtcdPods
from falcon_operator.cluster.recorder import Recorder
from falcon_operator.cluster.secrets import BusCertificates, CertificateStore, MissingSecret
from falcon_operator.cluster.transport import Transport

LOOK_SECONDS = 60.0
RETRY_SECONDS = 2.0
RESTART_SECONDS = 60.0  # a pod that is younger than the bundle by less may have been given the former one
_PROOF_SECONDS = 3.0
_NO_LEADER = "it knows no leader"
log = structlog.get_logger(__name__)


class Authorities:
    """The Secrets with the bus's certificates, and this process's own files of them."""

    def __init__(
        self, settings: Settings, transport: Transport, recorder: Recorder, clock: Clock, folder: Path
    ) -> None:
        self._settings = settings
        self._pods = EtcdPods(transport, settings.namespace, settings.etcd_selector)
        self._recorder = recorder
        self._clock = clock
        self._folder = folder  # private to this process
        self._store = CertificateStore(
            transport,
            settings.namespace,
            settings.etcd_secret_prefix,
            settings.gateway_secret_prefix,
            settings.anomaly_names,
            self._doubts,
        )
        self._current: BusCertificates | None = None
        self._root: EtcdTls | None = None
        self._trouble = ""
        self._restarted: set[tuple[str, bytes]] = set()  # endpoint of etcd, and the new authority that it was to read

    # -- what holds, for the bus -------------------------------------------------------------------------------------

    @property
    def jobs(self) -> Pair:
        return self._loaded.jobs

    @property
    def jobs_trusted(self) -> bytes:
        return self._loaded.jobs_trusted

    @property
    def control(self) -> bytes:
        return self._loaded.control

    @property
    def expiries(self) -> dict[str, float]:
        """Return when the certificates expire, unix seconds, by the Secret's name."""
        return self._store.expiries

    @property
    def notes(self) -> tuple[str, ...]:
        """Return a line for people for each thing that is under way or wrong."""
        return (*([self._trouble] if self._trouble else []), *self._store.notes)

    @property
    def _loaded(self) -> BusCertificates:
        assert self._current is not None  # ``load`` has returned
        return self._current

    # -- work --------------------------------------------------------------------------------------------------------

    async def load(self) -> tuple[EtcdTls, GatewayTls]:
        """Wait until all certificates are there. Return what the clients of etcd and of the gateways need.

        A gateway is reached at its pod's address and shows the names of its Service.
        """
        etcd, files = await self._insist()
        assert files.cert is not None
        assert files.key is not None
        return etcd, GatewayTls(files.ca, files.cert, files.key, self._settings.gateway_names[0])

    async def run(self) -> None:
        """Look again and again, until cancelled. Clients take up new files by themselves."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._insist()

    async def _insist(self) -> tuple[EtcdTls, EtcdTls]:
        """Try until it works, for what is missing now may come later. Return the files for etcd and for gateways."""
        for attempt in itertools.count():
            try:
                files = await self._look()
            except (OSError, NotFound, Conflict, Rejected, MissingSecret, ValueError) as error:
                self._trouble = f"CertificatesUnmade: certificates can be neither made nor renewed: {error}"
                if attempt % 15 == 0:
                    log.warning("waiting", what="certificates", error=str(error))
            else:
                self._trouble = ""
                return files
            await asyncio.sleep(RETRY_SECONDS)
        raise AssertionError("unreachable")

    async def _look(self) -> tuple[EtcdTls, EtcdTls]:
        settings, now = self._settings, dt.datetime.fromtimestamp(self._clock.unix(), dt.UTC)
        if settings.etcd_managed:
            current = await self._store.ensure(settings.etcd_server_names, settings.gateway_names, now)
        else:
            current = await self._store.external(settings.gateway_names, now)
        self._current = current
        self._root = tls_files.write(self._folder / "etcd", current.etcd_authority, current.root)
        for repair in self._store.take_repairs():
            reason, kind = ("CertificateMissing", "Warning") if repair.was_missing else ("CertificateRenewed", "Normal")
            note = f"{repair.why}: the operator has written it again"
            await self._recorder.about_secret(repair.secret, kind, reason, note)
        return self._root, tls_files.write(self._folder / "gateway", current.control, current.root)

    # -- etcd --------------------------------------------------------------------------------------------------------

    async def _doubts(self, authority: Pair, trusted: bytes) -> Sequence[str]:
        """Return which members of etcd accept no certificate by this authority yet; restart one of them."""
        if self._root is None:  # the first look of this process: its own certificate is not there yet
            return ["the operator has just started"]
        now = dt.datetime.fromtimestamp(self._clock.unix(), dt.UTC)
        proof = tls_files.write(self._folder / "proof", trusted, certs.issue_client(authority, certs.ROOT_USER, now))
        refused, doubts = [], []
        for endpoint in self._settings.etcd_endpoints:
            # A member that does not even accept the certificate in use is away, and a restart would not help it.
            if why := await _refusal(endpoint, self._root):
                doubts.append(f"etcd {endpoint} does not answer ({why})")
            elif await _refusal(endpoint, proof) not in ("", _NO_LEADER):
                refused.append(endpoint)
        if refused and not doubts:
            doubts.append(await self._restart(refused[0], authority.cert))
        return [*doubts, *(f"etcd {endpoint} has not read the new authority" for endpoint in refused[1:])]

    async def _restart(self, endpoint: str, authority: bytes) -> str:
        """Restart the pod behind an endpoint, once, if it began before the authority was made. Return what is awaited.

        Where it cannot be restarted, that is part of what is returned: certificates are renewed all the same.
        """
        by_hand = f"etcd {endpoint} has not read the new authority: restart its pod"
        if not self._settings.etcd_selector:
            return by_hand
        if (endpoint, authority) in self._restarted:
            # Its clock may be behind that by which the authority was made: another restart would not help.
            return (
                f"etcd {endpoint} was restarted and still refuses the new authority: compare the clocks of its node and"
                " the operator's, or restart its pod"
            )
        try:
            pod = behind(endpoint, await self._pods.list())
            if pod is None or pod.deleting or pod.created_unix >= certs.made_unix(authority) + RESTART_SECONDS:
                return by_hand
            await self._pods.restart(pod)
        except (OSError, NotFound, Conflict, Rejected) as error:
            return f"{by_hand} ({error})"
        self._restarted.add((endpoint, authority))
        log.warning("etcd restarted, so that it reads the new authority", pod=pod.name)
        return f"pod {pod.name} was restarted, so that etcd reads the new authority"


def behind(endpoint: str, pods: Sequence[EtcdPod]) -> EtcdPod | None:
    """Return the pod that serves an endpoint: the only pod, or that whose name begins the host."""
    if len(pods) == 1:
        return pods[0]
    host = endpoint.removeprefix("https://").partition(".")[0]
    return next((pod for pod in pods if pod.name == host), None)


async def _refusal(endpoint: str, tls: EtcdTls) -> str:
    """Return why a member does not serve a client with this certificate; "" if it does, as part of a quorum."""
    try:
        async with Client([endpoint], tls, _PROOF_SECONDS) as client:
            status = await client.status()
    except EtcdError as error:
        return error.detail
    return "" if status.leader_id else _NO_LEADER  # a member answers before it has joined, too
