"""Keep the certificate with which the operator's webhook answers the API server, and name its authority there.

The authority signs nothing else, so whom the bus trusts does not depend on it, and a drain waits for no Secret of an
external etcd. The leader alone writes; every replica reads.
"""

from __future__ import annotations

import base64
import datetime as dt

import msgspec
import structlog

from falcon_operator.base.ports import NotFound
from falcon_operator.bus import certs
from falcon_operator.bus.certs import Pair
from falcon_operator.cluster.cache.views import Fields
from falcon_operator.cluster.certificates.rotation import Rotation
from falcon_operator.cluster.certificates.stored_pairs import Leaf, StoredPairs
from falcon_operator.cluster.transport import JSON_PATCH, Transport, path_of

log = structlog.get_logger(__name__)
_API, _PLURAL = "admissionregistration.k8s.io/v1", "validatingwebhookconfigurations"


class _ClientConfig(Fields, frozen=True, kw_only=True):
    ca_bundle: str = ""


class _Webhook(Fields, frozen=True, kw_only=True):
    name: str
    client_config: _ClientConfig


class _Configuration(Fields, frozen=True, kw_only=True):
    webhooks: list[_Webhook]


class WebhookCertificates:
    """The Secrets ``<prefix>-webhook-ca`` and ``<prefix>-webhook-tls``, and one ValidatingWebhookConfiguration.

    ``names``: hosts by which the API server knows the webhook; ``configuration``: name of the configuration.
    """

    def __init__(
        self, transport: Transport, namespace: str, prefix: str, names: tuple[str, ...], configuration: str
    ) -> None:
        self._http = transport
        self._pairs = StoredPairs(transport, namespace)
        self._authority_name = f"{prefix}-webhook-ca"
        self._leaf_name = f"{prefix}-webhook-tls"
        self._rotation = Rotation()
        self._names = names
        self._configuration = configuration

    async def ensure(self, now: dt.datetime) -> Pair:
        """Make what is missing or about to expire, and let the API server trust it. Return the certificate.

        Call it regularly. Raises OSError, Conflict, Rejected.
        """
        authority = await self._pairs.authority(self._authority_name, certs.WEBHOOK, now)
        bundle = await self._pairs.file(self._leaf_name, "ca.crt")
        stage = self._rotation.look(authority, [bundle] if bundle else [], now)
        if stage.step in ("Spreading", "Proving"):
            stage = self._rotation.switch(stage, authority, now)
        # The API server alone checks this certificate. It learns the new authority first, and trusts the former one
        # for as long as another replica may still show its certificate.
        await self._name_authority(stage.trusted)
        leaf = Leaf(
            self._leaf_name, self._names, lambda: certs.issue_server(stage.issuer, self._names, now, "falcon webhook")
        )
        pair = await self._pairs.leaf(leaf, {"ca.crt": stage.trusted}, now, stage.accepted)
        await self._pairs.authority(self._authority_name, certs.WEBHOOK, now, settled=True)
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

    async def _name_authority(self, authority: bytes) -> None:
        """Write the authority into every webhook of the configuration, if it is not there."""
        path = path_of(_API, _PLURAL, name=self._configuration)
        try:
            found = msgspec.json.decode(await self._http.call("GET", path), type=_Configuration)
        except NotFound:  # the release is being removed
            log.warning("no webhook configuration: no drain waits for a job", name=self._configuration)
            return
        wanted = base64.b64encode(authority).decode()
        for index, webhook in enumerate(found.webhooks):
            if webhook.client_config.ca_bundle == wanted:
                continue
            place = f"/webhooks/{index}"
            change = [
                # The list may have changed since it was read.
                {"op": "test", "path": f"{place}/name", "value": webhook.name},
                {"op": "add", "path": f"{place}/clientConfig/caBundle", "value": wanted},
            ]
            await self._http.call("PATCH", path, body=change, content_type=JSON_PATCH)
            log.info("authority of the webhook named", configuration=self._configuration, webhook=webhook.name)
