"""Keep the bus's certificates in Secrets of the operator's namespace: make them at the first start, and renew them.

``<etcd prefix>-ca`` (ca.crt, ca.key) is the control authority; ``<etcd prefix>-server`` (etcd's) and ``<etcd
prefix>-root`` (the operator's and the gateways', towards etcd) hold ca.crt, tls.crt and tls.key. ``<gateway
prefix>-jobs-ca`` (ca.crt, ca.key) signs the agents' certificates. ``<gateway prefix>-gateway-tls`` is what gateways
show: ca.crt, tls.crt and tls.key by the control authority, and the jobs' authority as jobs-ca.crt. ``<gateway
prefix>-anomalies-tls`` is what the anomaly service shows, to gateways and to the operator, where there is such a
service: ca.crt, tls.crt and tls.key by the control authority. None of these names ends as the Secret of a job does
(``<job>-falcon-gateway``), so that a job in the same namespace cannot overwrite any.

With an external etcd its owner provides ``-ca`` and ``-root``; without ca.key also ``-gateway-tls``, and
``-anomalies-tls`` if the anomaly service is to run.
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable

import msgspec
import structlog

from falcon_operator.base.ports import Conflict, NotFound, Rejected
from falcon_operator.bus import certs
from falcon_operator.bus.certs import Pair
from falcon_operator.cluster.transport import AlreadyExists, Transport, path_of

log = structlog.get_logger(__name__)
_ATTEMPTS = 5


class MissingSecret(Exception):  # noqa: N818 - a state of the installation
    """The error of a missing Secret that etcd's owner has to provide; the message names the Secret and its keys."""


class BusCertificates(msgspec.Struct, frozen=True):
    """The certificates and keys that the operator uses."""

    jobs: Pair  # the authority that signs the agents' certificates
    root: Pair
    control: bytes  # PEM; signed the gateways' certificate
    etcd_authority: bytes  # PEM; signed etcd's certificate: the control authority, unless etcd is external


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Secret(msgspec.Struct, frozen=True):
    metadata: _Meta
    data: dict[str, str] | None = None


class _Leaf(msgspec.Struct, frozen=True):
    """A certificate that is wanted: its Secret, its names, and how to make a new one."""

    name: str
    names: tuple[str, ...]
    make: Callable[[], Pair]


class CertificateStore:
    """The Secrets with two prefixes: the control authority's with etcd's, and the gateways'.

    ``anomaly_names``: of the anomaly service's Service; empty where there is none.
    """

    def __init__(
        self,
        transport: Transport,
        namespace: str,
        etcd_prefix: str,
        gateway_prefix: str,
        anomaly_names: tuple[str, ...] = (),
    ) -> None:
        self._http = transport
        self._namespace = namespace
        self._etcd = etcd_prefix
        self._jobs_name = f"{gateway_prefix}-jobs-ca"
        self._gateway_name = f"{gateway_prefix}-gateway-tls"
        self._anomaly_name = f"{gateway_prefix}-anomalies-tls"
        self._anomaly_names = anomaly_names

    async def ensure(
        self, server_names: tuple[str, ...], gateway_names: tuple[str, ...], now: dt.datetime
    ) -> BusCertificates:
        """Make the certificates that are missing or about to expire.

        ``server_names`` are etcd's, ``gateway_names`` those of the gateways' Services. Call it regularly: the call is
        what renews them.
        """
        control = await self._authority(f"{self._etcd}-ca", certs.CONTROL, now)
        jobs = await self._authority(self._jobs_name, certs.JOBS, now)
        server = _Leaf(f"{self._etcd}-server", server_names, lambda: certs.issue_server(control, server_names, now))
        root = _Leaf(f"{self._etcd}-root", (), lambda: certs.issue_client(control, certs.ROOT_USER, now))
        await self._leaf(server, {"ca.crt": control.cert}, now)
        pair = await self._leaf(root, {"ca.crt": control.cert}, now)
        await self._gateway(control, jobs, gateway_names, now)
        await self._anomalies(control, now)
        return BusCertificates(jobs, pair, control.cert, control.cert)

    async def external(self, gateway_names: tuple[str, ...], now: dt.datetime) -> BusCertificates:
        """Make the gateways' certificates, next to what the owner of an external etcd has put into the Secrets.

        Raises :class:`MissingSecret` when a Secret or one of its keys is missing.
        """
        [root_cert, root_key, etcd_authority] = await self._provided(
            f"{self._etcd}-root", "a client certificate of user root", "tls.crt", "tls.key", "ca.crt"
        )
        [control] = await self._provided(f"{self._etcd}-ca", "the authority that etcd trusts for clients", "ca.crt")
        _, data = await self._get(f"{self._etcd}-ca")
        jobs = await self._authority(self._jobs_name, certs.JOBS, now)
        if data.get("ca.key"):
            authority = Pair(control, data["ca.key"])
            await self._gateway(authority, jobs, gateway_names, now)
            await self._anomalies(authority, now)
        else:
            await self._provided_gateway(control, jobs, gateway_names, now)
        return BusCertificates(jobs, Pair(root_cert, root_key), control, etcd_authority)

    # -- one Secret --------------------------------------------------------------------------------------------------

    async def _provided(self, name: str, what: str, *keys: str) -> list[bytes]:
        _, data = await self._get(name)
        missing = [key for key in keys if not data.get(key)]
        if missing:
            raise MissingSecret(
                f"Secret {self._namespace}/{name} ({what}) lacks {', '.join(missing)}: create it with"
                f" {', '.join(keys)}, or let the chart run its own etcd (etcd.enabled=true)"
            )
        return [data[key] for key in keys]

    async def _gateway(self, control: Pair, jobs: Pair, names: tuple[str, ...], now: dt.datetime) -> None:
        leaf = _Leaf(self._gateway_name, names, lambda: certs.issue_server(control, names, now, "falcon gateway"))
        await self._leaf(leaf, {"ca.crt": control.cert, "jobs-ca.crt": jobs.cert}, now)

    async def _anomalies(self, control: Pair, now: dt.datetime) -> None:
        """Bring the anomaly service's certificate up to date, where there is such a service.

        Its loss costs no more than the service: the bus must not wait for it.
        """
        names = self._anomaly_names
        if not names:
            return
        leaf = _Leaf(self._anomaly_name, names, lambda: certs.issue_server(control, names, now, certs.ANOMALY_SERVICE))
        try:
            await self._leaf(leaf, {"ca.crt": control.cert}, now)
        except (OSError, NotFound, Conflict, Rejected) as error:
            log.warning("no certificate for the anomaly service", secret=self._anomaly_name, error=str(error))

    async def _provided_gateway(self, control: bytes, jobs: Pair, names: tuple[str, ...], now: dt.datetime) -> None:
        """Complete a gateway's certificate that the owner of the control authority has issued."""

        def refuse() -> Pair:
            raise MissingSecret(
                f"Secret {self._namespace}/{self._etcd}-ca lacks ca.key, so that the operator cannot issue the"
                f" gateways' certificate: add ca.key, or create Secret {self._namespace}/{self._gateway_name} with"
                f" tls.crt and tls.key, a server's certificate signed by ca.crt for the names {', '.join(names)}"
            )

        await self._leaf(_Leaf(self._gateway_name, names, refuse), {"ca.crt": control, "jobs-ca.crt": jobs.cert}, now)

    async def _authority(self, name: str, common_name: str, now: dt.datetime) -> Pair:
        for _ in range(_ATTEMPTS):
            version, data = await self._get(name)
            pair = Pair(data.get("ca.crt", b""), data.get("ca.key", b""))
            why = certs.problem(pair, pair.cert, now)
            if not why:
                return pair
            fresh = certs.new_authority(now, common_name)
            if await self._put(name, version, {"ca.crt": fresh.cert, "ca.key": fresh.key}, why):
                return fresh
        raise Conflict(f"Secret {self._namespace}/{name} keeps changing: another client writes it")

    async def _leaf(self, leaf: _Leaf, others: dict[str, bytes], now: dt.datetime) -> Pair:
        """Bring a Secret to a good certificate by the authority ``others["ca.crt"]``, and to these other files."""
        for _ in range(_ATTEMPTS):
            version, data = await self._get(leaf.name)
            pair = Pair(data.get("tls.crt", b""), data.get("tls.key", b""))
            why = certs.problem(pair, others["ca.crt"], now, names=leaf.names)
            if not why and others.items() <= data.items():
                return pair
            # A good certificate stays where only one of the authorities in the Secret has changed.
            fresh = leaf.make() if why else pair
            wanted = {**others, "tls.crt": fresh.cert, "tls.key": fresh.key}
            if await self._put(leaf.name, version, wanted, why or "an authority changed"):
                return fresh
        raise Conflict(f"Secret {self._namespace}/{leaf.name} keeps changing: another client writes it")

    async def _get(self, name: str) -> tuple[str, dict[str, bytes]]:
        """Return the Secret's resourceVersion ("" if the Secret does not exist) and its decoded data."""
        try:
            answer = await self._http.call("GET", path_of("v1", "secrets", self._namespace, name))
        except NotFound:
            return "", {}
        secret = msgspec.json.decode(answer, type=_Secret)
        data = {key: base64.b64decode(value) for key, value in (secret.data or {}).items()}
        return secret.metadata.resource_version, data

    async def _put(self, name: str, version: str, data: dict[str, bytes], why: str) -> bool:
        """Create or replace the Secret. Return False if another client did so meanwhile."""
        metadata = {"name": name, "namespace": self._namespace}
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {**metadata, **({"resourceVersion": version} if version else {})},
            "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
        }
        try:
            # With the version that was read, a replica that renews at the same time gets a conflict instead of
            # overwriting.
            if version:
                await self._http.call("PUT", path_of("v1", "secrets", self._namespace, name), body=body)
                log.info("certificate renewed", secret=name, why=why)
            else:
                await self._http.call("POST", path_of("v1", "secrets", self._namespace), body=body)
                log.info("certificate made", secret=name)
        except (AlreadyExists, Conflict):
            return False
        return True
