"""Serve the webhook that the API server asks about evictions, from an event loop of its own (docs/adr/0146).

The port is open to every pod, since no policy can name the API server: connections are bounded before TLS.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import structlog
from aiohttp import web

from falcon_listen.places import Limits
from falcon_operator.cluster.certificates.serving import ServedCertificate
from falcon_operator.runtime.evictions import Evictions

PATH: Final = "/evictions"
# An API server asks from one address, by a connection for each eviction of the cluster. Several nodes may be drained at
# once, with all of their pods at the same time, and each that is refused asks again after five seconds.
LIMITS: Final = Limits(places=1024, places_of_a_source=1024, opened_per_second=500, opened_at_once=2000)
MOST_REVIEW_BYTES: Final = 256 << 10
TOO_MANY_REQUESTS: Final = 429  # as of a budget: those who drain ask again after it
log = structlog.get_logger(__name__)


class _Request(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    namespace: str = ""
    name: str = ""
    dry_run: bool | None = None


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    request: _Request


_review = msgspec.json.Decoder(_Review)


def answer(review: _Review, refusal: str) -> dict[str, Any]:
    """Return the AdmissionReview that admits, or refuses with these words."""
    response: dict[str, Any] = {"uid": review.request.uid, "allowed": not refusal}
    if refusal:
        response["status"] = {
            "status": "Failure",
            "message": refusal,
            "reason": "TooManyRequests",
            "code": TOO_MANY_REQUESTS,
        }
    return {"apiVersion": review.api_version, "kind": review.kind, "response": response}


def application(evictions: Evictions) -> web.Application:
    """Return the webhook as an application."""

    async def judge(request: web.Request) -> web.StreamResponse:
        try:
            review = _review.decode(await request.read())
        except msgspec.MsgspecError as error:
            raise web.HTTPBadRequest(text=f"not an AdmissionReview: {error}\n") from None
        asked = review.request
        refusal = await evictions.refusal(asked.namespace, asked.name, dry_run=bool(asked.dry_run))
        response = web.json_response(answer(review, refusal))
        response.force_close()
        return response

    app = web.Application(client_max_size=MOST_REVIEW_BYTES)
    app.add_routes([web.post(PATH, judge)])
    return app


class Webhook:
    """The port, and the certificate that the leader keeps and every replica shows."""

    def __init__(self, port: int, certificate: ServedCertificate, evictions: Evictions) -> None:
        self._port = port
        self._certificate = certificate
        self._evictions = evictions

    async def run(self) -> None:
        """Serve until cancelled. While it is not served, evictions are admitted."""
        await self._certificate.serve(
            "webhook", lambda: application(self._evictions), self._port, self._refused, LIMITS
        )

    def _refused(self, reason: str) -> None:
        """Count a connection that was closed unanswered: the API server then admits the eviction."""
        self._evictions.unanswered()
        log.debug("connection to the webhook closed unanswered", reason=reason)
