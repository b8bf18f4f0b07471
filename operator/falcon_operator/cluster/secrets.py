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

import datetime as dt

import msgspec
import structlog

from falcon_operator.base.ports import Conflict, NotFound, Rejected
from falcon_operator.bus import certs
from falcon_operator.bus.certs import Pair
from falcon_operator.cluster.certificates.stored_pairs import Leaf, StoredPairs
from falcon_operator.cluster.transport import Transport

log = structlog.get_logger(__name__)


class MissingSecret(Exception):  # noqa: N818 - a state of the installation
    """The error of a missing Secret that etcd's owner has to provide; the message names the Secret and its keys."""


class BusCertificates(msgspec.Struct, frozen=True):
    """The certificates and keys that the operator uses."""

    jobs: Pair  # the authority that signs the agents' certificates
    root: Pair
    control: bytes  # PEM; signed the gateways' certificate
    etcd_authority: bytes  # PEM; signed etcd's certificate: the control authority, unless etcd is external


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
        self._pairs = StoredPairs(transport, namespace)
        self._namespace = namespace
        self._etcd = etcd_prefix
        self._jobs_name = f"{gateway_prefix}-jobs-ca"
        self._gateway_name = f"{gateway_prefix}-gateway-tls"
        self._anomaly_name = f"{gateway_prefix}-anomalies-tls"
        self._anomaly_names = anomaly_names

    @property
    def expiries(self) -> dict[str, float]:
        """Return when the certificates in the operator's own Secrets expire, unix seconds, by the Secret's name."""
        return self._pairs.expiries

    async def ensure(
        self, server_names: tuple[str, ...], gateway_names: tuple[str, ...], now: dt.datetime
    ) -> BusCertificates:
        """Make the certificates that are missing or about to expire.

        ``server_names`` are etcd's, ``gateway_names`` those of the gateways' Services. Call it regularly: the call is
        what renews them.
        """
        control = await self._pairs.authority(f"{self._etcd}-ca", certs.CONTROL, now)
        jobs = await self._pairs.authority(self._jobs_name, certs.JOBS, now)
        server = Leaf(f"{self._etcd}-server", server_names, lambda: certs.issue_server(control, server_names, now))
        root = Leaf(f"{self._etcd}-root", (), lambda: certs.issue_client(control, certs.ROOT_USER, now))
        await self._pairs.leaf(server, {"ca.crt": control.cert}, now)
        pair = await self._pairs.leaf(root, {"ca.crt": control.cert}, now)
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
        _, data = await self._pairs.get(f"{self._etcd}-ca")
        jobs = await self._pairs.authority(self._jobs_name, certs.JOBS, now)
        if data.get("ca.key"):
            authority = Pair(control, data["ca.key"])
            await self._gateway(authority, jobs, gateway_names, now)
            await self._anomalies(authority, now)
        else:
            await self._provided_gateway(control, jobs, gateway_names, now)
        return BusCertificates(jobs, Pair(root_cert, root_key), control, etcd_authority)

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

    async def _gateway(self, control: Pair, jobs: Pair, names: tuple[str, ...], now: dt.datetime) -> None:
        leaf = Leaf(self._gateway_name, names, lambda: certs.issue_server(control, names, now, "falcon gateway"))
        await self._pairs.leaf(leaf, {"ca.crt": control.cert, "jobs-ca.crt": jobs.cert}, now)

    async def _anomalies(self, control: Pair, now: dt.datetime) -> None:
        """Bring the anomaly service's certificate up to date, where there is such a service.

        Its loss costs no more than the service: the bus must not wait for it.
        """
        names = self._anomaly_names
        if not names:
            return
        leaf = Leaf(self._anomaly_name, names, lambda: certs.issue_server(control, names, now, certs.ANOMALY_SERVICE))
        try:
            await self._pairs.leaf(leaf, {"ca.crt": control.cert}, now)
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

        leaf = Leaf(self._gateway_name, names, refuse)
        await self._pairs.leaf(leaf, {"ca.crt": control, "jobs-ca.crt": jobs.cert}, now)
