"""HTTP calls to the API server: the client library's connection and credentials, our own (de)serialisation.

Answers are decoded straight into the few fields that are needed (msgspec). For a list of pods this takes a tenth of the
time and memory of the library's models. The errors are those of ``ports``; a fault of the connection is an ``OSError``.
"""

from __future__ import annotations

import asyncio
import copy
import os
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Literal, cast
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from falcon_operator.base.ports import Conflict, NotFound, Rejected, Unavailable
from falcon_operator.cluster.pace import Lane, Paces

TIMEOUT_SECONDS = 15.0
FIELD_MANAGER = "falcon-operator"
# of a watch: after 10 s without a byte a probe each 5 s, and the end after three without an answer
KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
_CONNECTIONS = 16
JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class Expired(Unavailable):
    """The error of a list or watch from a version that the API server has no memory of any more (HTTP 410)."""


class _Status(msgspec.Struct, frozen=True):
    """metav1.Status, as far as the operator reads it."""

    message: str = ""
    reason: str = ""


async def load_configuration() -> Configuration:
    """Return the configuration of the pod's service account, else that of KUBECONFIG or its default path.

    Raises OSError, whose message names the remedy, when there is no configuration.
    """
    configuration = Configuration()
    try:
        # A KUBECONFIG that is set inside a pod is meant: it wins over the pod's own account.
        if os.environ.get("KUBERNETES_SERVICE_HOST") and not os.environ.get("KUBECONFIG"):
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            # The API server is inside the cluster; a proxy that a policy names to all pods is for the world outside.
            configuration.client_session_kwargs = {"trust_env": False}
        else:
            await config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=os.environ.get("KUBECONFIG"), client_configuration=configuration
            )
    except config.ConfigException as error:
        raise OSError(f"no way to the API server: {error}; run in a pod, or set KUBECONFIG") from error
    configuration.connection_pool_maxsize = _CONNECTIONS
    # A repeated write could be carried out twice. Callers decide what may be repeated.
    configuration.retries = False
    return configuration


class Transport:
    """A connection pool for the API server, and connections apart from it for watches, which keep theirs for good.

    ``may_write`` is called before every write and raises to forbid the write. ``paces`` say how long a write waits
    for its turn.
    """

    def __init__(self, configuration: Configuration, may_write: Callable[[], None], paces: Paces | None = None) -> None:
        self._configuration = configuration
        self._client = ApiClient(configuration)
        self._client.user_agent = FIELD_MANAGER
        unlimited = copy.copy(configuration)
        unlimited.connection_pool_maxsize = 0
        self._apart = ApiClient(unlimited)
        self._may_write = may_write
        self._paces = paces

    async def close(self) -> None:
        await self._client.close()  # type: ignore[no-untyped-call]
        await self._apart.close()  # type: ignore[no-untyped-call]

    async def call(
        self,
        method: Method,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        guarded: bool = True,
        lane: Lane = "Other",
    ) -> bytes:
        """Send a request and return the answer's body. Raises Conflict, NotFound, Rejected, :class:`Unavailable`.

        ``guarded``: whether only the leader may make this write; the election's own calls are not guarded, and wait
        for no turn.
        """
        if guarded and method != "GET":
            # Wait first and check the leadership afterwards: it may have been lost during the wait.
            if self._paces is not None:
                await asyncio.sleep(self._paces.wait_seconds(lane))
            self._may_write()
        try:
            response = await self._send(self._client, method, path, query, body, content_type, TIMEOUT_SECONDS)
            data = cast(bytes, await response.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable(f"{method} {path}: {error or type(error).__name__}") from error
        # From here on the server has answered, and its answer decides the type of the error.
        if 200 <= response.status <= 299:
            return data
        raise _error(method, path, response.status, data)

    async def lines(self, path: str, query: Mapping[str, str], silent_seconds: float) -> AsyncGenerator[bytes, None]:
        """Send a GET and yield its answer line by line, until the server ends it.

        Raises what ``call`` raises, :class:`Unavailable` also after ``silent_seconds`` without a byte.
        """
        # A watch has no total time limit, only one for its silence.
        patience = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT_SECONDS, sock_read=silent_seconds)
        try:
            response = (await self._send(self._apart, "GET", path, query, None, JSON, patience)).response
            try:
                if response.status != 200:
                    raise _error("GET", path, response.status, await response.read())
                # A server whose machine has died closes no connection, so the kernel has to ask for it.
                _probe_the_peer(response)
                rest = b""
                async for chunk in response.content.iter_any():
                    # A chunk ends anywhere: what follows its last line break is the start of the next line.
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        yield line
            finally:
                response.close()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable(f"watch {path}: {error or type(error).__name__}") from error

    async def _send(
        self,
        client: ApiClient,
        method: Method,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        content_type: str,
        timeout: Any,  # noqa: ASYNC109 - the HTTP client's own
    ) -> Any:
        url = self._configuration.host + path + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": JSON, "User-Agent": FIELD_MANAGER, "Content-Type": content_type}
        await self._client.update_params_for_auth(headers, {}, ["BearerToken"], path, method, body)
        return await client.rest_client.request(  # type: ignore[no-untyped-call]
            method, url, headers=headers, body=body, _request_timeout=timeout
        )


def _probe_the_peer(response: aiohttp.ClientResponse) -> None:
    """Let the kernel find out within half a minute that the server's machine is gone, however quiet a watch is."""
    connection = response.connection
    peer = connection.transport.get_extra_info("socket") if connection is not None and connection.transport else None
    if peer is not None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            peer.setsockopt(socket.IPPROTO_TCP, option, value)


def _error(method: str, path: str, status: int, data: bytes) -> Exception:
    try:
        said = msgspec.json.decode(data, type=_Status)
    except msgspec.MsgspecError:
        said = _Status(message=data[:300].decode(errors="replace"))
    text = said.message or f"HTTP {status}"
    if status == 404:
        return NotFound(text)
    if status == 410:
        return Expired(text)
    if status == 409:
        return AlreadyExists(text) if said.reason == "AlreadyExists" else Conflict(text)
    if status in (400, 403, 405, 413, 415, 422):
        # 403 is a quota, a missing ServiceAccount, an admission policy or a missing right: none of the object's doing.
        return Rejected(text, transient=status == 403)
    return Unavailable(f"{method} {path}: HTTP {status}: {text}", status)


class AlreadyExists(Conflict):
    """The error of a create that met an object of the same name."""


def path_of(api: str, plural: str, namespace: str = "", name: str = "", subresource: str = "") -> str:
    """Return the resource's path. ``api`` is "v1" or "group/version"."""
    root = f"/api/{api}" if "/" not in api else f"/apis/{api}"
    parts = [root]
    if namespace:
        parts += ["namespaces", quote(namespace, safe="")]
    parts.append(plural)
    if name:
        parts.append(quote(name, safe=""))
    if subresource:
        parts.append(subresource)
    return "/".join(parts)
