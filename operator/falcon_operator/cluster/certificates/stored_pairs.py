"""Keep pairs of certificate and key in Secrets: make them where they are missing, and again before they expire."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable

import msgspec
import structlog

from falcon_operator.base.ports import Conflict, NotFound
from falcon_operator.bus import certs
from falcon_operator.bus.certs import Pair
from falcon_operator.cluster.transport import AlreadyExists, Transport, path_of

log = structlog.get_logger(__name__)
_ATTEMPTS = 5


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Secret(msgspec.Struct, frozen=True):
    metadata: _Meta
    data: dict[str, str] | None = None


class Leaf(msgspec.Struct, frozen=True):
    """A certificate that is wanted: its Secret, its names, and how to make a new one."""

    name: str
    names: tuple[str, ...]
    make: Callable[[], Pair]


class StoredPairs:
    """The Secrets of one namespace that hold certificates. Writes raise Conflict where another client keeps writing."""

    def __init__(self, transport: Transport, namespace: str) -> None:
        self._http = transport
        self._namespace = namespace
        self.expiries: dict[str, float] = {}  # by the Secret's name: when its certificate expires, unix seconds

    async def authority(self, name: str, common_name: str, now: dt.datetime) -> Pair:
        """Return the authority in a Secret (ca.crt, ca.key); make it where there is none, or in time a new one."""
        for _ in range(_ATTEMPTS):
            version, data = await self.get(name)
            pair = Pair(data.get("ca.crt", b""), data.get("ca.key", b""))
            why = certs.problem(pair, pair.cert, now)
            if not why:
                return self._noted(name, pair)
            fresh = certs.new_authority(now, common_name)
            if await self._put(name, version, {"ca.crt": fresh.cert, "ca.key": fresh.key}, why):
                return self._noted(name, fresh)
        raise Conflict(f"Secret {self._namespace}/{name} keeps changing: another client writes it")

    async def leaf(self, leaf: Leaf, others: dict[str, bytes], now: dt.datetime) -> Pair:
        """Bring a Secret to a good certificate by the authority ``others["ca.crt"]``, and to these other files."""
        for _ in range(_ATTEMPTS):
            version, data = await self.get(leaf.name)
            pair = Pair(data.get("tls.crt", b""), data.get("tls.key", b""))
            why = certs.problem(pair, others["ca.crt"], now, names=leaf.names)
            if not why and others.items() <= data.items():
                return self._noted(leaf.name, pair)
            # A good certificate stays where only one of the authorities in the Secret has changed.
            fresh = leaf.make() if why else pair
            wanted = {**others, "tls.crt": fresh.cert, "tls.key": fresh.key}
            if await self._put(leaf.name, version, wanted, why or "an authority changed"):
                return self._noted(leaf.name, fresh)
        raise Conflict(f"Secret {self._namespace}/{leaf.name} keeps changing: another client writes it")

    def _noted(self, name: str, pair: Pair) -> Pair:
        self.expiries[name] = certs.expires_unix(pair.cert)
        return pair

    async def get(self, name: str) -> tuple[str, dict[str, bytes]]:
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
