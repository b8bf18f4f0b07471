"""Keep the bus's certificates in Secrets of the operator's namespace: make them at the first start, and renew them.

``<etcd prefix>-ca`` (ca.crt, ca.key) is the control authority; ``<etcd prefix>-server`` (etcd's) and ``<etcd
prefix>-root`` (the operator's and the gateways', towards etcd) hold ca.crt, tls.crt and tls.key. ``<gateway
prefix>-jobs-ca`` (ca.crt, ca.key) signs the agents' certificates. While an authority is replaced, ca.crt of the other
Secrets holds the new and the former one (docs/adr/0162). ``<gateway prefix>-gateway-tls`` is what gateways
show: ca.crt, tls.crt and tls.key by the control authority, and the jobs' authority as jobs-ca.crt. ``<gateway
prefix>-anomalies-tls`` is what the anomaly service shows, to gateways and to the operator, where there is such a
service: ca.crt, tls.crt and tls.key by the control authority. None of these names ends as the Secret of a job does
(``<job>-falcon-gateway``), so that a job in the same namespace cannot overwrite any.

With an external etcd its owner provides ``-ca`` and ``-root``; without ca.key also ``-gateway-tls``, and
``-anomalies-tls`` if the anomaly service is to run.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import structlog

from falcon_operator.base.ports import Conflict, NotFound, Rejected
from falcon_operator.bus import certs
from falcon_operator.bus.certs import Pair
from falcon_operator.cluster.certificates.rotation import Rotation, Stage, explain
from falcon_operator.cluster.certificates.stored_pairs import Leaf, Repair, StoredPairs
from falcon_operator.cluster.transport import Transport

log = structlog.get_logger(__name__)


class MissingSecret(Exception):  # noqa: N818 - a state of the installation
    """The error of a missing Secret that etcd's owner has to provide; the message names the Secret and its keys."""


class BusCertificates(msgspec.Struct, frozen=True):
    """The certificates and keys that the operator uses."""

    jobs: Pair  # the authority that signs the agents' certificates
    root: Pair
    control: bytes  # PEM of the authorities by which gateways are known
    etcd_authority: bytes  # PEM of those by which etcd is known: the same ones, unless etcd is external
    jobs_trusted: bytes  # PEM of the authorities by which agents are known


Doubts = Callable[[Pair, bytes], Awaitable[Sequence[str]]]


async def no_doubts(_: Pair, __: bytes) -> Sequence[str]:
    """Ask no process whether it trusts an authority."""
    return ()


class CertificateStore:
    """The Secrets with two prefixes: the control authority's with etcd's, and the gateways'.

    ``anomaly_names``: of the anomaly service's Service; empty where there is none. ``doubts`` gets a new control
    authority and the PEM of all that are trusted, and returns who does not accept certificates by the new one yet.
    """

    def __init__(
        self,
        transport: Transport,
        namespace: str,
        etcd_prefix: str,
        gateway_prefix: str,
        anomaly_names: tuple[str, ...] = (),
        doubts: Doubts = no_doubts,
    ) -> None:
        self._pairs = StoredPairs(transport, namespace)
        self._namespace = namespace
        self._etcd = etcd_prefix
        self._jobs_name = f"{gateway_prefix}-jobs-ca"
        self._gateway_name = f"{gateway_prefix}-gateway-tls"
        self._anomaly_name = f"{gateway_prefix}-anomalies-tls"
        self._anomaly_names = anomaly_names
        self._doubts = doubts
        self._control_rotation, self._jobs_rotation = Rotation(), Rotation()
        self._notes: dict[str, str] = {}  # by the authority's Secret

    @property
    def expiries(self) -> dict[str, float]:
        """Return when the certificates in the operator's own Secrets expire, unix seconds, by the Secret's name."""
        return self._pairs.expiries

    @property
    def notes(self) -> tuple[str, ...]:
        """Return a line for each authority whose replacement is under way."""
        return tuple(note for note in self._notes.values() if note)

    def take_repairs(self) -> list[Repair]:
        """Return the Secrets that were written again since the last call, and forget them."""
        repairs, self._pairs.repairs = self._pairs.repairs, []
        return repairs

    async def ensure(
        self, server_names: tuple[str, ...], gateway_names: tuple[str, ...], now: dt.datetime
    ) -> BusCertificates:
        """Make the certificates that are missing or about to expire.

        ``server_names`` are etcd's, ``gateway_names`` those of the gateways' Services. Call it regularly: the call is
        what renews them.
        """
        control = await self._control(now)
        jobs = await self._jobs(now)
        issuer = control.issuer
        server = Leaf(f"{self._etcd}-server", server_names, lambda: certs.issue_server(issuer, server_names, now))
        root = Leaf(f"{self._etcd}-root", (), lambda: certs.issue_client(issuer, certs.ROOT_USER, now))
        trusted = {"ca.crt": control.trusted}
        await self._pairs.leaf(server, trusted, now, control.accepted)
        pair = await self._pairs.leaf(root, trusted, now, control.accepted)
        await self._gateway(control, jobs, gateway_names, now)
        await self._anomalies(control, now)
        return BusCertificates(jobs.issuer, pair, control.trusted, control.trusted, jobs.trusted)

    async def external(self, gateway_names: tuple[str, ...], now: dt.datetime) -> BusCertificates:
        """Make the gateways' certificates, next to what the owner of an external etcd has put into the Secrets.

        Raises :class:`MissingSecret` when a Secret or one of its keys is missing, or ca.key cannot sign.
        """
        [root_cert, root_key, etcd_authority] = await self._provided(
            f"{self._etcd}-root", "a client certificate of user root", "tls.crt", "tls.key", "ca.crt"
        )
        [control] = await self._provided(f"{self._etcd}-ca", "the authority that etcd trusts for clients", "ca.crt")
        self._pairs.note(f"{self._etcd}-root", root_cert)
        self._pairs.note(f"{self._etcd}-ca", control)
        _, data = await self._pairs.get(f"{self._etcd}-ca")
        jobs = await self._jobs(now)
        if data.get("ca.key"):
            # Its owner alone knows who has read a new authority, and writes both into ca.crt, the new one first.
            authority = Stage("Only", control, self._provided_authority(Pair(control, data["ca.key"]), now))
            await self._gateway(authority, jobs, gateway_names, now)
            await self._anomalies(authority, now)
        else:
            await self._provided_gateway(control, jobs, gateway_names, now)
        return BusCertificates(jobs.issuer, Pair(root_cert, root_key), control, etcd_authority, jobs.trusted)

    # -- authorities -------------------------------------------------------------------------------------------------

    async def _control(self, now: dt.datetime) -> Stage:
        name, rotation = f"{self._etcd}-ca", self._control_rotation
        leaves = (f"{self._etcd}-server", f"{self._etcd}-root", self._gateway_name)
        return await self._stage(name, certs.CONTROL, rotation, [(leaf, "ca.crt") for leaf in leaves], now)

    async def _jobs(self, now: dt.datetime) -> Stage:
        readers = [(self._gateway_name, "jobs-ca.crt")]
        return await self._stage(self._jobs_name, certs.JOBS, self._jobs_rotation, readers, now)

    async def _stage(
        self, name: str, common_name: str, rotation: Rotation, readers: Sequence[tuple[str, str]], now: dt.datetime
    ) -> Stage:
        """Return what holds of an authority; ``readers`` are the Secrets, with the file, that hand its bundle on."""
        authority = await self._pairs.authority(name, common_name, now)
        bundles = [await self._pairs.file(secret, file) for secret, file in readers]
        stage = rotation.look(authority, [bundle for bundle in bundles if bundle], now)
        doubts: Sequence[str] = ()
        if stage.step == "Proving":
            # Only etcd keeps what it read at its start, and it does not know the jobs' authority.
            if common_name == certs.CONTROL:
                doubts = await self._doubts(authority.newest, stage.trusted)
            if not doubts:
                stage = rotation.switch(stage, authority, now)
                log.info("certificates are made by the new authority", secret=name)
        if stage.step in ("Only", "Switched"):
            await self._pairs.authority(name, common_name, now, settled=True)
        self._notes[name] = explain(common_name, f"{self._namespace}/{name}", stage, doubts)
        return stage

    # -- one Secret --------------------------------------------------------------------------------------------------

    async def _provided(self, name: str, what: str, *keys: str) -> list[bytes]:
        _, data = await self._pairs.get(name)
        missing = [key for key in keys if not data.get(key)]
        if missing:
            raise MissingSecret(
                f"Secret {self._namespace}/{name} ({what}) lacks {', '.join(missing)}: create it with"
                f" {', '.join(keys)}, or let the chart run its own etcd (etcd.enabled=true)"
            )
        return [data[key] for key in keys]

    def _provided_authority(self, pair: Pair, now: dt.datetime) -> Pair:
        if not certs.can_sign(pair, now):
            raise MissingSecret(
                f"Secret {self._namespace}/{self._etcd}-ca: ca.key must be the ECDSA key, without a password, of the"
                " first certificate in ca.crt, which must not have expired: write both again, or leave ca.key out and"
                f" create Secret {self._namespace}/{self._gateway_name} with tls.crt and tls.key"
            )
        return pair

    async def _gateway(self, control: Stage, jobs: Stage, names: tuple[str, ...], now: dt.datetime) -> None:
        leaf = Leaf(self._gateway_name, names, lambda: certs.issue_server(control.issuer, names, now, "falcon gateway"))
        trusted = {"ca.crt": control.trusted, "jobs-ca.crt": jobs.trusted}
        await self._pairs.leaf(leaf, trusted, now, control.accepted)

    async def _anomalies(self, control: Stage, now: dt.datetime) -> None:
        """Bring the anomaly service's certificate up to date, where there is such a service.

        Its loss costs no more than the service: the bus must not wait for it.
        """
        names = self._anomaly_names
        if not names:
            return
        issuer = control.issuer
        leaf = Leaf(self._anomaly_name, names, lambda: certs.issue_server(issuer, names, now, certs.ANOMALY_SERVICE))
        try:
            await self._pairs.leaf(leaf, {"ca.crt": control.trusted}, now, control.accepted)
        except (OSError, NotFound, Conflict, Rejected) as error:
            log.warning("no certificate for the anomaly service", secret=self._anomaly_name, error=str(error))

    async def _provided_gateway(self, control: bytes, jobs: Stage, names: tuple[str, ...], now: dt.datetime) -> None:
        """Complete a gateway's certificate that the owner of the control authority has issued."""

        def refuse() -> Pair:
            raise MissingSecret(
                f"Secret {self._namespace}/{self._etcd}-ca lacks ca.key, so that the operator cannot issue the"
                f" gateways' certificate: add ca.key, or create Secret {self._namespace}/{self._gateway_name} with"
                f" tls.crt and tls.key, a server's certificate signed by ca.crt for the names {', '.join(names)}"
            )

        leaf = Leaf(self._gateway_name, names, refuse)
        await self._pairs.leaf(leaf, {"ca.crt": control, "jobs-ca.crt": jobs.trusted}, now)
