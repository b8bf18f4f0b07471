"""Keep a mirror current: list, then watch from the list's version, and list again where the watch breaks.

A watch that ends, or whose connection fails, continues at the last version that it reported; the API server then sends
what happened in between, deletions included. If it has no memory of that version any more (410), everything is listed
again, and an object that the list lacks was deleted meanwhile. While the API server is away the mirror keeps its last
state, as any reader would that asked just before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Generic, Literal, Protocol, TypeVar

import msgspec
import structlog

from falcon_operator.base.ports import Conflict, NotFound, Rejected
from falcon_operator.cluster.cache import views
from falcon_operator.cluster.cache.mirror import Item, Mirror
from falcon_operator.cluster.cache.views import ListMeta
from falcon_operator.cluster.transport import Expired, Method

PAGE = "500"
WATCH_SECONDS = "600"  # then the server ends the watch, and the next begins with a fresh token
SILENT_SECONDS = 150.0  # the server sends a bookmark each minute; after this long it hangs (a dead one is found sooner)
FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 0.5, 5.0  # a few watches only: to ask often is cheap
V = TypeVar("V")
# The API server has no memory of the version; the connection ended or fell silent; the API server refused the request.
Interruption = Literal["expired", "interrupted", "refused"]
log = structlog.get_logger(__name__)


class Server(Protocol):
    """The part of the transport that a reflector uses."""

    async def call(self, method: Method, path: str, *, query: Mapping[str, str] | None = None) -> bytes: ...

    def lines(self, path: str, query: Mapping[str, str], silent_seconds: float) -> AsyncGenerator[bytes, None]: ...


def uncounted(_resource: str, _why: Interruption) -> None:
    """Count nothing."""


class _Event(msgspec.Struct, frozen=True):
    """A line of a watch. ``object`` is decoded by ``type``: it may be a bookmark or an error instead of an object."""

    type: str
    object: msgspec.Raw


class _Bookmark(msgspec.Struct, frozen=True):
    metadata: ListMeta = ListMeta()


class _Status(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


_event = msgspec.json.Decoder(_Event)
_bookmark = msgspec.json.Decoder(_Bookmark)
_status = msgspec.json.Decoder(_Status)


class Reflector(Generic[V]):
    """Keeps one mirror current. ``query`` selects the objects; ``decode`` builds an item from an object's JSON.

    ``on_interruption`` is called with the resource (``pods``) and the reason each time that the watch begins again,
    unless the server ended it in time.
    """

    def __init__(
        self,
        server: Server,
        mirror: Mirror[V],
        path: str,
        decode: Callable[[bytes | msgspec.Raw], Item[V]],
        query: Mapping[str, str] | None = None,
        on_interruption: Callable[[str, Interruption], None] = uncounted,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._server = server
        self._mirror = mirror
        self._path = path
        self._decode = decode
        self._query = dict(query or {})
        self._on_interruption = on_interruption
        self._wait = wait
        self._version = ""  # the last that the watch reported; "": list first
        self._failures = 0
        self._listed = asyncio.Event()

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except Expired as error:
                # The server has forgotten the version from which the watch would go on: only a list is complete.
                log.info("listing again", path=self._path, why=str(error))
                self._version = ""
                await self._back_off("expired")
            except OSError as error:
                log.warning("watch interrupted", path=self._path, error=str(error))
                await self._back_off("interrupted")
            except (Conflict, NotFound, Rejected) as error:
                log.warning("watch refused", path=self._path, error=str(error))
                self._version = ""  # the list may be allowed all the same
                await self._back_off("refused")

    async def synced(self) -> None:
        """Wait for the first list."""
        await self._listed.wait()

    async def _list(self) -> None:
        found: list[Item[V]] = []
        token = ""
        while True:
            query = {**self._query, "limit": PAGE, **({"continue": token} if token else {})}
            page = views.page(await self._server.call("GET", self._path, query=query))
            found += [self._decode(raw) for raw in page.items]
            token = page.metadata.continue_
            if not token:
                break
        # All pages show the state of the first one, so the last page's version holds for all of them.
        version = page.metadata.resource_version
        self._mirror.listed(found, int(version))
        self._version = version
        self._listed.set()
        log.debug("listed", path=self._path, objects=len(found), version=version)

    async def _watch(self) -> None:
        query = {
            **self._query,
            "watch": "1",
            "resourceVersion": self._version,
            # Bookmarks move the version on while nothing changes, so that a later resume finds it in the server's
            # memory.
            "allowWatchBookmarks": "true",
            "timeoutSeconds": WATCH_SECONDS,
        }
        spoke = False
        async with aclosing(self._server.lines(self._path, query, SILENT_SECONDS)) as lines:
            async for line in lines:
                self._take(_event.decode(line))
                self._failures, spoke = 0, True
        if not spoke:
            raise OSError("the watch ended without an event")  # not to begin the next at once, again and again

    def _take(self, event: _Event) -> None:
        """Take over one event. Raises Expired or OSError for the error that ends a watch."""
        if event.type == "ERROR":
            status = _status.decode(event.object)
            raise (Expired if status.code == 410 else OSError)(status.message or f"HTTP {status.code}")
        if event.type == "BOOKMARK":
            # A bookmark has no object. It says that all events up to its version have been sent.
            self._version = _bookmark.decode(event.object).metadata.resource_version
            self._mirror.reached(int(self._version))
            return
        item = self._decode(event.object)
        if event.type == "DELETED":
            self._mirror.deleted(item.name, item.version)
        else:
            self._mirror.changed(item)
        self._version = str(item.version)

    async def _back_off(self, why: Interruption) -> None:
        self._on_interruption(self._path.rpartition("/")[2], why)
        seconds = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(self._failures, 16))
        self._failures += 1
        await self._wait(seconds)
