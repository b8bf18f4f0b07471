"""Keep the certificate with which the operator's webhook answers the API server, and name its authority there.

The API server alone checks this certificate, so it learns a new authority at once.
"""

from __future__ import annotations

import base64

import msgspec
import structlog

from falcon_operator.base.ports import NotFound
from falcon_operator.bus import certs
from falcon_operator.cluster.cache.views import Fields
from falcon_operator.cluster.certificates.serving import ServingCertificates
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


class WebhookCertificates(ServingCertificates):
    """The Secrets ``<prefix>-webhook-ca`` and ``<prefix>-webhook-tls``, and one ValidatingWebhookConfiguration.

    ``names``: hosts by which the API server knows the webhook; ``configuration``: name of the configuration.
    """

    _spreads = False  # the API server alone checks the certificate, and is given both authorities before

    def __init__(
        self, transport: Transport, namespace: str, prefix: str, names: tuple[str, ...], configuration: str
    ) -> None:
        super().__init__(transport, namespace, f"{prefix}-webhook", names, certs.WEBHOOK)
        self._http = transport
        self._configuration = configuration

    async def _announce(self, authority: bytes) -> None:
        """Write the authorities into every webhook of the configuration, if they are not there."""
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
