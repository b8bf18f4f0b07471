"""Keep pairs of certificate and key in Secrets: make them where they are missing, and again before they expire."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
from collections.abc import Callable

import msgspec
import structlog

from falcon_operator.base.ports import Conflict, NotFound
from falcon_operator.bus import certs
from falcon_operator.bus.certs import Pair
from falcon_operator.cluster.certificates.rotation import Authority
from falcon_operator.cluster.transport import AlreadyExists, Transport, path_of

log = structlog.get_logger(__name__)
_ATTEMPTS = 5
_FORMER = ("former.crt", "former.key")


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


class Repair(msgspec.Struct, frozen=True):
    """A Secret that was written for a reason which people should know."""

    secret: str
    why: str
    was_missing: bool  # although this process had seen it before


class StoredPairs:
    """The Secrets of one namespace that hold certificates. Writes raise Conflict where another client keeps writing."""

    def __init__(self, transport: Transport, namespace: str) -> None:
        self._http = transport
        self._namespace = namespace
        self.expiries: dict[str, float] = {}  # by the Secret's name: when its certificate expires, unix seconds
        self.repairs: list[Repair] = []  # since the reader took the last ones
        # By the Secret's name, the authority that signs: a person may delete or overwrite the Secret.
        self._signers: dict[str, Pair] = {}

    async def authority(self, name: str, common_name: str, now: dt.datetime, *, settled: bool = False) -> Authority:
        """Return the authority in a Secret; make it where there is none, or in time a new one.

        The Secret holds ca.crt and ca.key, and for as long as it still signs the authority before: former.crt and
        former.key. That is kept as well where a person has put another authority in its place. ``settled``: that one
        signs no more, and its key is removed.
        """
        for _ in range(_ATTEMPTS):
            version, data = await self.get(name)
            pair = Pair(data.get("ca.crt", b""), data.get("ca.key", b""))
            fresh, former, why = pair, None, certs.problem(pair, pair.cert, now)
            if why:
                former = _former([self._signers.get(name, pair), pair], now)
                fresh = certs.new_authority(now, common_name)
            elif settled:
                why = "the former authority signs no more" if _FORMER[0] in data else ""
            else:
                former, why = self._before(name, pair, data, now)
            if not why:
                return self._known(name, pair, former)
            wanted = {"ca.crt": fresh.cert, "ca.key": fresh.key}
            if former is not None:
                wanted |= dict(zip(_FORMER, (former.cert, former.key), strict=True))
            if await self._put(name, version, wanted, why):
                return self._known(name, fresh, former)
        raise Conflict(f"Secret {self._namespace}/{name} keeps changing: another client writes it")

    def _before(self, name: str, pair: Pair, data: dict[str, bytes], now: dt.datetime) -> tuple[Pair | None, str]:
        """Return who signed before a good authority, and why its Secret has to be written; "" where it has not."""
        stored = Pair(*(data.get(file, b"") for file in _FORMER))
        candidates = [stored, self._signers.get(name, pair)]
        former = _former([each for each in candidates if each.cert != pair.cert], now)
        return former, "" if former in (None, stored) else "another authority was put in its place"

    def _known(self, name: str, pair: Pair, former: Pair | None) -> Authority:
        self._signers[name] = former or pair
        return Authority(self._noted(name, pair), former)

    async def file(self, name: str, file: str) -> bytes:
        """Return one file of a Secret; empty where there is none."""
        return (await self.get(name))[1].get(file, b"")

    async def leaf(self, leaf: Leaf, others: dict[str, bytes], now: dt.datetime, accepted: bytes = b"") -> Pair:
        """Bring a Secret to a good certificate by an authority of ``accepted``, and to these other files.

        ``accepted`` is PEM; without it, the authorities in ``others["ca.crt"]`` count.
        """
        for _ in range(_ATTEMPTS):
            version, data = await self.get(leaf.name)
            pair = Pair(data.get("tls.crt", b""), data.get("tls.key", b""))
            why = certs.problem(pair, accepted or others["ca.crt"], now, names=leaf.names)
            if not why and others.items() <= data.items():
                return self._noted(leaf.name, pair)
            # A good certificate stays where only one of the authorities in the Secret has changed.
            fresh = leaf.make() if why else pair
            wanted = {**others, "tls.crt": fresh.cert, "tls.key": fresh.key}
            if await self._put(leaf.name, version, wanted, why or "an authority changed"):
                return self._noted(leaf.name, fresh)
        raise Conflict(f"Secret {self._namespace}/{leaf.name} keeps changing: another client writes it")

    def note(self, name: str, cert: bytes) -> None:
        """Note when a certificate expires that another person provides; what cannot be read has no expiry."""
        self.expiries.pop(name, None)
        with contextlib.suppress(ValueError):
            self.expiries[name] = certs.expires_unix(cert)

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
                self.repairs.append(Repair(name, why, was_missing=False))
            else:
                await self._http.call("POST", path_of("v1", "secrets", self._namespace), body=body)
                log.info("certificate made", secret=name)
                # A Secret that this process has seen was deleted by a person; at the first start all are missing.
                if name in self.expiries:
                    self.repairs.append(Repair(name, "the Secret was missing", was_missing=True))
        except (AlreadyExists, Conflict):
            return False
        return True


def _former(candidates: list[Pair], now: dt.datetime) -> Pair | None:
    """Return the first of these authorities that can still sign."""
    return next((pair for pair in candidates if certs.can_sign(pair, now)), None)
