"""Admit to a page the clients whose bearer token the API server knows, and which may ``get`` the page's path.

Each token is checked by a TokenReview and a SubjectAccessReview, as Kubernetes' own components do (docs/adr/0188).
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import msgspec

from falcon_listen.token_answers import Answer, TokenAnswers

REVIEW_SECONDS: Final = 3.0  # for both questions about one token; a scrape ends after 10 s by default
MOST_STRANGERS: Final = 4  # tokens without an earlier good answer that are checked at the same time
RETRY_SECONDS: Final = 5
TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
Post = Callable[[str, dict[str, Any]], Awaitable[bytes]]


class ReviewError(OSError):
    """The error of a token that cannot be checked now; the message says why."""


class Refusal(NamedTuple):
    """An answer to a client that does not get the page."""

    status: int
    text: str  # for people, with the remedy; ends with a line break

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that belong to the status."""
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        return {"Retry-After": str(RETRY_SECONDS)} if self.status == 503 else {}


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: dict[str, Any] = {}


class _TokenReview(msgspec.Struct, frozen=True):
    status: _TokenStatus


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False


class _AccessReview(msgspec.Struct, frozen=True):
    status: _AccessStatus


class Access:
    """Who may read one page.

    ``post`` sends an object to a path of the API server and returns the server's answer; it raises OSError, whose
    message says why there is none. ``role`` is the ClusterRole that lets its subjects read the page. ``failed`` is
    called with the reason when tokens can no longer be checked.
    """

    def __init__(
        self,
        post: Post,
        role: str,
        path: str = "/metrics",
        *,
        failed: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._post = post
        self._role = role
        self._path = path
        self._failed = failed
        self._clock = clock
        self._answers = TokenAnswers()
        self._under_way: dict[bytes, asyncio.Task[Answer]] = {}
        self._strangers: set[bytes] = set()  # of those under way, the tokens without an earlier good answer
        self._trouble = ""  # why the last check failed

    async def refusal(self, authorization: str | None) -> Refusal | None:
        """Return the answer to a client that may not read the page; None where it may.

        ``authorization``: the header of that name. Returns within ``REVIEW_SECONDS``.
        """
        token = _bearer(authorization)
        remedy = f"send the token of a service account that is bound to the ClusterRole {self._role}"
        if not token:
            return Refusal(401, f"{self._path} needs the header 'Authorization: Bearer <token>': {remedy}\n")
        try:
            answer = await self._answer(token)
        except OSError as error:
            return Refusal(503, f"tokens cannot be checked now, try again in {RETRY_SECONDS} s: {error}\n")
        if not answer.user:
            return Refusal(401, f"the API server does not know this token, or it has expired: {remedy}\n")
        if not answer.allowed:
            return Refusal(403, f"{answer.user} may not get {self._path}: bind it to the ClusterRole {self._role}\n")
        return None

    async def _answer(self, token: str) -> Answer:
        """Return the answer about a token. Raises OSError where there is none."""
        key, now = hashlib.sha256(token.encode()).digest(), self._clock()
        if (fresh := self._answers.fresh(key, now)) is not None:
            return fresh
        lent = self._answers.lent(key, now)
        if key not in self._under_way:
            if lent is None and len(self._strangers) >= MOST_STRANGERS:
                raise ReviewError("too many other tokens are being checked")
            self._begin(token, key, known=lent is not None)
        try:
            # A client that gives up ends no check: others wait for the same one.
            return await asyncio.shield(self._under_way[key])
        except OSError:
            if lent is None:
                raise
            return lent

    def _begin(self, token: str, key: bytes, *, known: bool) -> None:
        """Begin to check a token, once for all clients that send it."""
        if not known:
            self._strangers.add(key)
        task = asyncio.get_running_loop().create_task(self._check(token, key), name="token review")
        self._under_way[key] = task

        def over(task: asyncio.Task[Answer]) -> None:
            del self._under_way[key]
            self._strangers.discard(key)
            if not task.cancelled():
                task.exception()  # all clients may have gone, and asyncio would complain of an error without a reader

        task.add_done_callback(over)

    async def _check(self, token: str, key: bytes) -> Answer:
        try:
            async with asyncio.timeout(REVIEW_SECONDS):
                answer = await self._ask(token)
        except TimeoutError:
            self._note(f"the API server has not answered within {REVIEW_SECONDS:g} s")
            raise ReviewError(self._trouble) from None
        except (OSError, msgspec.MsgspecError) as error:
            self._note(str(error) or type(error).__name__)
            raise ReviewError(self._trouble) from error
        self._trouble = ""
        self._answers.keep(key, answer, self._clock())
        return answer

    async def _ask(self, token: str) -> Answer:
        """Ask whose token it is, and then whether this user may get the path."""
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        status = msgspec.json.decode(await self._post(TOKEN_REVIEWS, asked), type=_TokenReview).status
        user = str(status.user.get("username", ""))
        if not status.authenticated or not user:
            return Answer("")
        spec: dict[str, Any] = {"user": user, "nonResourceAttributes": {"path": self._path, "verb": "get"}}
        spec |= {name: status.user[name] for name in ("uid", "groups", "extra") if name in status.user}
        asked = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = msgspec.json.decode(await self._post(ACCESS_REVIEWS, asked), type=_AccessReview)
        return Answer(user, answer.status.allowed)

    def _note(self, trouble: str) -> None:
        """Report a trouble once, however many clients meet it."""
        if trouble != self._trouble:
            self._failed(trouble)
        self._trouble = trouble


def _bearer(authorization: str | None) -> str:
    """Return the token in a header; "" where there is none."""
    scheme, _, token = (authorization or "").strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
