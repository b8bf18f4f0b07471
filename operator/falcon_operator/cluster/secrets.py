"""The bus's certificates in Secrets of the operator's namespace: made at the first start, renewed in time.

``<prefix>-ca`` (ca.crt, ca.key), ``<prefix>-server`` (etcd's) and ``<prefix>-root`` (the operator's own; both ca.crt,
tls.crt, tls.key). With an external etcd nothing is made: its owner provides ``-ca`` and ``-root``.
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable

import msgspec
import structlog

from falcon_operator.bus import certs
from falcon_operator.bus.certs import Pair
from falcon_operator.cluster.transport import AlreadyExists, Transport, path_of
from falcon_operator.ports import Conflict, NotFound

log = structlog.get_logger(__name__)
_ATTEMPTS = 5


class MissingSecret(Exception):  # noqa: N818 - a state of the installation
    """The error of a missing Secret that somebody has to provide; the message names the Secret and its keys."""


class BusCertificates(msgspec.Struct, frozen=True):
    """The certificates and keys that the operator uses."""

    authority: Pair  # signs client certificates
    root: Pair
    server_authority: bytes  # PEM; signed etcd's certificate


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Secret(msgspec.Struct, frozen=True):
    metadata: _Meta
    data: dict[str, str] | None = None


class CertificateStore:
    """The Secrets of one prefix."""

    def __init__(self, transport: Transport, namespace: str, prefix: str) -> None:
        self._http = transport
        self._namespace = namespace
        self._prefix = prefix

    async def ensure(self, server_names: tuple[str, ...], now: dt.datetime) -> BusCertificates:
        """Make the certificates that are missing or about to expire.

        Call it regularly: the call is what renews them.
        """
        authority = await self._authority(now)
        await self._leaf(
            "server",
            authority,
            lambda: certs.issue_server(authority, server_names, now),
            server_names,
            now,
        )
        root = await self._leaf("root", authority, lambda: certs.issue_client(authority, certs.ROOT_USER, now), (), now)
        return BusCertificates(authority, root, authority.cert)

    async def read(self) -> BusCertificates:
        """Return what the owner of an external etcd has put into the Secrets.

        Raises :class:`MissingSecret` when a Secret or one of its keys is missing.
        """
        ca = await self._provided("ca", "the authority that etcd trusts for clients", "ca.crt", "ca.key")
        root = await self._provided("root", "a client certificate of user root", "tls.crt", "tls.key", "ca.crt")
        return BusCertificates(Pair(ca[0], ca[1]), Pair(root[0], root[1]), root[2])

    async def _provided(self, part: str, what: str, *keys: str) -> list[bytes]:
        name = f"{self._prefix}-{part}"
        _, data = await self._get(name)
        missing = [key for key in keys if not data.get(key)]
        if missing:
            raise MissingSecret(
                f"Secret {self._namespace}/{name} ({what}) lacks {', '.join(missing)}: create it with"
                f" {', '.join(keys)}, or let the chart run its own etcd (etcd.enabled=true)"
            )
        return [data[key] for key in keys]

    async def _authority(self, now: dt.datetime) -> Pair:
        name = f"{self._prefix}-ca"
        for _ in range(_ATTEMPTS):
            version, data = await self._get(name)
            pair = Pair(data.get("ca.crt", b""), data.get("ca.key", b""))
            why = certs.problem(pair, pair.cert, now)
            if not why:
                return pair
            fresh = certs.new_authority(now)
            if await self._put(name, version, {"ca.crt": fresh.cert, "ca.key": fresh.key}, why):
                return fresh
        raise Conflict(f"Secret {self._namespace}/{name} keeps changing: somebody else writes it")

    async def _leaf(
        self, part: str, authority: Pair, make: Callable[[], Pair], names: tuple[str, ...], now: dt.datetime
    ) -> Pair:
        name = f"{self._prefix}-{part}"
        for _ in range(_ATTEMPTS):
            version, data = await self._get(name)
            pair = Pair(data.get("tls.crt", b""), data.get("tls.key", b""))
            why = certs.problem(pair, authority.cert, now, names=names)
            if not why and data.get("ca.crt") == authority.cert:
                return pair
            fresh = make()
            data = {"ca.crt": authority.cert, "tls.crt": fresh.cert, "tls.key": fresh.key}
            if await self._put(name, version, data, why or "the authority changed"):
                return Pair(fresh.cert, fresh.key)
        raise Conflict(f"Secret {self._namespace}/{name} keeps changing: somebody else writes it")

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
        """Create or replace the Secret. Return False if somebody else did so meanwhile."""
        metadata = {"name": name, "namespace": self._namespace}
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {**metadata, **({"resourceVersion": version} if version else {})},
            "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
        }
        try:
            if version:
                await self._http.call("PUT", path_of("v1", "secrets", self._namespace, name), body=body)
                log.info("certificate renewed", secret=name, why=why)
            else:
                await self._http.call("POST", path_of("v1", "secrets", self._namespace), body=body)
                log.info("certificate made", secret=name)
        except (AlreadyExists, Conflict):
            return False
        return True
