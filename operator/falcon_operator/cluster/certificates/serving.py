"""Keep the certificate of a port of the operator, by an authority that signs nothing else.

So whom the bus trusts does not depend on it, and it waits for no Secret of an external etcd. The leader alone writes;
every replica reads and shows it.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final

import structlog
from aiohttp import web

from falcon_listen import pages
from falcon_listen.places import Limits
from falcon_operator.base.ports import Clock
from falcon_operator.bus import certs, tls_files
from falcon_operator.bus.certs import Pair
from falcon_operator.cluster.certificates.rotation import Rotation
from falcon_operator.cluster.certificates.stored_pairs import Leaf, StoredPairs
from falcon_operator.cluster.transport import Transport

LOOK_SECONDS: Final = 30.0  # between two looks at the certificate
RETRY_SECONDS: Final = 2.0
log = structlog.get_logger(__name__)


class ServingCertificates:
    """The Secrets ``<prefix>-ca`` and ``<prefix>-tls``.

    ``names``: hosts by which clients know the port; ``authority``: the common name of the authority.
    """

    _spreads: ClassVar = True  # clients take a while to read a new authority

    def __init__(
        self, transport: Transport, namespace: str, prefix: str, names: tuple[str, ...], authority: str
    ) -> None:
        self._pairs = StoredPairs(transport, namespace)
        self._authority_name = f"{prefix}-ca"
        self._leaf_name = f"{prefix}-tls"
        self._rotation = Rotation()
        self._names = names
        self._authority = authority

    async def ensure(self, now: dt.datetime) -> Pair:
        """Make what is missing or about to expire, and let clients trust it. Return the certificate.

        Call it regularly. Raises OSError, Conflict, Rejected.
        """
        authority = await self._pairs.authority(self._authority_name, self._authority, now)
        bundle = await self._pairs.file(self._leaf_name, "ca.crt")
        stage = self._rotation.look(authority, [bundle] if bundle else [], now)
        if stage.step == "Proving" or (stage.step == "Spreading" and not self._spreads):
            stage = self._rotation.switch(stage, authority, now)
        # Clients learn the new authority first, and trust the former one for as long as another replica may still show
        # its certificate.
        await self._announce(stage.trusted)
        leaf = Leaf(
            self._leaf_name,
            self._names,
            lambda: certs.issue_server(stage.issuer, self._names, now, self._authority.removesuffix("'s authority")),
        )
        pair = await self._pairs.leaf(leaf, {"ca.crt": stage.trusted}, now, stage.accepted)
        if stage.step in ("Only", "Switched"):
            await self._pairs.authority(self._authority_name, self._authority, now, settled=True)
        return pair

    @property
    def expiries(self) -> dict[str, float]:
        """Return when the certificates expire, unix seconds, by the Secret's name; empty before they are there."""
        return self._pairs.expiries

    async def read(self) -> Pair | None:
        """Return the certificate that the leader has made; None where there is none yet."""
        _, data = await self._pairs.get(self._leaf_name)
        pair = Pair(data.get("tls.crt", b""), data.get("tls.key", b""))
        return pair if pair.cert and pair.key else None

    async def _announce(self, authority: bytes) -> None:
        """Let clients trust the authorities (PEM). Those that read ``ca.crt`` in the Secret need nothing else."""


class ServedCertificate:
    """The TLS of a port, which is brought up to date while the port is served."""

    def __init__(
        self, certificates: ServingCertificates, leading: Callable[[], bool], clock: Clock, folder: Path
    ) -> None:
        self._certificates = certificates
        self._leading = leading
        self._clock = clock
        self._folder = folder
        self._context: ssl.SSLContext | None = None

    @property
    def context(self) -> ssl.SSLContext:
        """Return the context for a connection that begins now. Call it after ``load`` has returned True."""
        assert self._context is not None
        return self._context

    async def load(self) -> bool:
        """Bring the certificate up to date, for connections that begin from now on. Return whether there is one."""
        try:
            pair = await self._pair()
            if pair is None:
                return self._context is not None
            files = tls_files.write(self._folder, pair.cert, pair)
            assert files.cert is not None
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(files.cert, files.key)
        except Exception as error:  # noqa: BLE001 - a person may have put anything into the Secrets; what is loaded stays
            log.warning("no certificate for a port", folder=self._folder.name, error=str(error) or type(error).__name__)
            return self._context is not None
        self._context = context
        return True

    async def serve(
        self,
        what: str,
        application: Callable[[], web.Application],
        port: int,
        refused: Callable[[str], None],
        limits: Limits = pages.LIMITS,
    ) -> None:
        """Serve by TLS until cancelled, from when there is a certificate. Nothing that fails here ends the operator.

        ``what``: for the log. ``refused`` is called for each connection that is closed unanswered, with the reason.
        """
        while True:
            try:
                await self._first()
                async with pages.serving(application(), port, refused, lambda: self.context, limits) as chosen:
                    log.info("served by TLS", what=what, port=chosen)
                    await self._keep()
            except Exception as error:  # noqa: BLE001 - without the loop, the port would be closed until a restart
                log.warning("not served by TLS", what=what, error=str(error) or type(error).__name__)
            await asyncio.sleep(RETRY_SECONDS)

    async def _first(self) -> None:
        """Wait until there is a certificate."""
        while True:
            if await self.load():
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _keep(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.load()

    async def _pair(self) -> Pair | None:
        if not self._leading():
            return await self._certificates.read()
        return await self._certificates.ensure(dt.datetime.fromtimestamp(self._clock.unix(), dt.UTC))
