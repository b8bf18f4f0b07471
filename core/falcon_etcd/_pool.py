"""Keep one gRPC channel per endpoint, and choose among them.

Calls stay with one endpoint while it answers (so that a process sees one member's time) and move on when it does not.
A channel is only handed out when it is connected: a call that fails earlier was never sent and may always be repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Sequence
from pathlib import Path

import grpc
import grpc.aio

from falcon_etcd._errors import Closed, EtcdError, Unavailable
from falcon_etcd._model import Tls
from falcon_etcd._proto import rpc_pb2
from falcon_etcd._rpc import STATUS

_log = logging.getLogger("falcon_etcd")
_READY = grpc.ChannelConnectivity.READY
_FAILED = grpc.ChannelConnectivity.TRANSIENT_FAILURE
_DEMOTED_SECONDS = 2.0
_POLL_SECONDS = (0.002, 0.05)  # first and longest pause while no channel is connected
_PROBE_SECONDS = 0.1
_CALLS_SECONDS = 5.0  # for calls that have begun on a channel that is replaced
LOOK_SECONDS = 5.0  # between two looks at the certificate files
CONNECT_SECONDS = 3.0  # for a connection with changed files, before the present one ends
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_Pems = tuple[bytes | None, bytes | None, bytes | None]  # authorities, key, certificate

_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.use_local_subchannel_pool", 1),  # close() ends this client's connections, whatever else the process holds
    ("grpc.enable_http_proxy", 0),  # the bus is inside the cluster; a pod's proxy is for the world outside
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # in truth the time limit of one connection attempt
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),  # a restarted pod has a new address
    ("grpc.keepalive_time_ms", 6_000),  # etcd takes a client that pings more often than every 5 s for an attacker
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),  # what ends a dead connection in truth; a minute by default
    ("grpc.http2.max_pings_without_data", 0),
)


def parse_endpoint(endpoint: str, *, tls: bool) -> str:
    """Return the ``host:port`` of an endpoint, which may have a scheme that agrees with ``tls``.

    Raises ValueError with the remedy for any other endpoint.
    """
    scheme, separator, rest = endpoint.partition("://")
    address = rest if separator else endpoint
    if separator and scheme not in ("http", "https"):
        raise ValueError(f"endpoints: {endpoint!r} has scheme {scheme!r}; write host:port")
    if separator and (scheme == "https") != tls:
        want = "pass tls=Tls(ca=…, cert=…, key=…)" if scheme == "https" else "write https:// or leave tls out"
        raise ValueError(f"endpoints: {endpoint!r} does not agree with tls={'set' if tls else 'None'}; {want}")
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdecimal() or "/" in address:
        raise ValueError(f"endpoints: {endpoint!r} is not host:port; write for example etcd.falcon-system:2379")
    return address


def choose(candidates: Sequence[tuple[grpc.ChannelConnectivity, bool]]) -> int | None:
    """Return the index of the endpoint to use, from the state of each and whether it is demoted; None: wait.

    This is the first connected endpoint. A demoted endpoint is used only when no other endpoint is connected or about
    to be.
    """
    for index, (state, demoted) in enumerate(candidates):
        if state is _READY and not demoted:
            return index
    if any(not demoted and state is not _FAILED for state, demoted in candidates):
        return None
    return next((index for index, (state, _) in enumerate(candidates) if state is _READY), None)


class Endpoint:
    """One address and its channel, which is made again when the certificate files have changed."""

    def __init__(self, address: str, tls: Tls | None) -> None:
        self.address = address
        self.demoted_until = 0.0
        self.closed = False
        self._tls = tls
        self._pems = _read_pems(tls)
        self.channel = self._connect(self._pems)

    def _connect(self, pems: _Pems) -> grpc.aio.Channel:
        if self._tls is None:
            return grpc.aio.insecure_channel(self.address, options=_OPTIONS)
        options = list[tuple[str, int | str]](_OPTIONS)
        if self._tls.server_name:
            options.append(("grpc.ssl_target_name_override", self._tls.server_name))
        ca, key, cert = pems
        credentials = grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=cert)
        return grpc.aio.secure_channel(self.address, credentials, options=options)

    def state(self) -> grpc.ChannelConnectivity:
        """Return the channel's state; an idle channel begins to connect."""
        if self.closed:
            return grpc.ChannelConnectivity.SHUTDOWN
        return self.channel.get_state(try_to_connect=True)

    async def reload(self) -> None:
        """Take up rotated certificates. Only for a channel that is not connected, because the channel's calls end."""
        pems = self._changed()
        if pems is not None:
            old, self._pems = self.channel, pems
            self.channel = self._connect(pems)
            await old.close()

    async def renew(self) -> None:
        """Connect again if the certificate files have changed: etcd does not end what was connected with former ones.

        The present connection stays if etcd does not accept the new files, unless it rests on an authority that has
        left them.
        """
        pems = self._changed()
        if pems is None:
            return
        idle = self._connect(pems)
        try:
            if await _connects(idle) or _lacks_an_authority(pems[0], self._pems[0]):
                idle, self.channel, self._pems = self.channel, idle, pems
                _log.info("%s: connected again with changed certificates", self.address)
        finally:
            await idle.close(_CALLS_SECONDS)
        if self.closed:
            await self.channel.close()

    def _changed(self) -> _Pems | None:
        """Return what stands in the certificate files; None where that has not changed, or cannot be read."""
        try:
            pems = _read_pems(self._tls)
        except ValueError as error:  # being replaced: the old ones may still do
            _log.warning("certificates are not taken up: %s", error)
            return None
        return None if pems == self._pems else pems

    async def close(self) -> None:
        self.closed = True
        await self.channel.close()

    def gone(self, operation: str) -> EtcdError:
        """Return the error of a call that was cancelled because its channel was closed."""
        if self.closed:
            return Closed(operation, self.address, "the client was closed during the call")
        return Unavailable(operation, self.address, "the connection was made again with changed certificates")

    async def why(self) -> str:
        """Return gRPC's reason why it cannot connect, found by a harmless read."""
        probe = self.channel.unary_unary(STATUS.path, STATUS.request.SerializeToString, STATUS.response.FromString)
        try:
            await probe(rpc_pb2.StatusRequest(), timeout=_PROBE_SECONDS)
        except grpc.aio.AioRpcError as error:
            return error.details() or error.code().name
        return "connected too late"


async def _connects(channel: grpc.aio.Channel) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CONNECT_SECONDS):
            await channel.channel_ready()
            return True
    return False


def _lacks_an_authority(present: bytes | None, former: bytes | None) -> bool:
    """Check whether one of the former authorities is no longer among those of the file."""
    trusted, before = (set(_CERTIFICATE.findall(bundle or b"")) for bundle in (present, former))
    return bool(trusted) and not before <= trusted


def _read_pems(tls: Tls | None) -> _Pems:
    """Read CA, key and certificate chain. Raises ValueError for a file that cannot be read."""
    if tls is None:
        return None, None, None
    return _read_pem("ca", tls.ca), _read_pem("key", tls.key), _read_pem("cert", tls.cert)


def _read_pem(field: str, path: Path | None) -> bytes | None:
    try:
        return path.read_bytes() if path else None
    except OSError as error:
        raise ValueError(f"tls.{field}: {path}: {error.strerror}; give the path of a readable PEM file") from None


class Pool:
    """The endpoints; the endpoint in use is the first."""

    def __init__(self, endpoints: Sequence[str], tls: Tls | None) -> None:
        if not endpoints:
            raise ValueError("endpoints: the list is empty; give at least one host:port")
        self._addresses = [parse_endpoint(endpoint, tls=tls is not None) for endpoint in endpoints]
        self._tls = tls
        self._endpoints: list[Endpoint] = []
        self._renewing: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def addresses(self) -> Sequence[str]:
        return tuple(self._addresses)

    def open(self) -> None:
        """Make the channels; they connect when first needed. Needs a running event loop."""
        self._endpoints = [Endpoint(address, self._tls) for address in self._addresses]
        if self._tls is not None:
            self._renewing = asyncio.create_task(self._renew(), name="etcd-renewal")

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for endpoint in tuple(self._endpoints):
                try:
                    await endpoint.renew()
                except Exception:  # noqa: BLE001 - whatever it is, the next look tries again
                    _log.exception("%s: not connected again with changed certificates", endpoint.address)

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        endpoints, self._endpoints = self._endpoints, []
        for endpoint in endpoints:
            await endpoint.close()

    async def ready(self, timeout_seconds: float, operation: str, only: str | None = None) -> Endpoint:
        """Wait for a connected endpoint and return it; ``only`` restricts the choice to one address.

        Raises :class:`Unavailable` (never applied) when no endpoint connects in time.
        """
        candidates = [e for e in self._endpoints if only is None or e.address == only]
        if not candidates:
            raise Closed(operation, "", "the client is not open")
        deadline = time.monotonic() + timeout_seconds
        pause, longest = _POLL_SECONDS
        # The usual case costs no wait: stay with the endpoint that answers.
        if candidates[0].state() is _READY and candidates[0].demoted_until <= time.monotonic():
            return candidates[0]
        for endpoint in candidates:
            if endpoint.state() is not _READY:
                # Certificates on disk may have been renewed since the channel was made.
                await endpoint.reload()
        while (chosen := self._choose(candidates)) is None:
            if not self._endpoints:
                raise Closed(operation, "", "the client was closed")
            if time.monotonic() >= deadline:
                raise await self._unreachable(candidates, operation, timeout_seconds)
            await asyncio.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(pause * 1.5, longest)
        if only is None:
            self._move(chosen, 0)
        return chosen

    def _choose(self, candidates: Sequence[Endpoint]) -> Endpoint | None:
        now = time.monotonic()
        index = choose([(endpoint.state(), endpoint.demoted_until > now) for endpoint in candidates])
        return None if index is None else candidates[index]

    def demote(self, endpoint: Endpoint) -> None:
        """Put an endpoint that did not answer behind the others for a while."""
        endpoint.demoted_until = time.monotonic() + _DEMOTED_SECONDS
        self._move(endpoint, len(self._endpoints))

    def _move(self, endpoint: Endpoint, index: int) -> None:
        if endpoint in self._endpoints:
            self._endpoints.remove(endpoint)
            self._endpoints.insert(index, endpoint)

    async def _unreachable(self, candidates: Sequence[Endpoint], operation: str, timeout_seconds: float) -> Unavailable:
        whys = await asyncio.gather(*(endpoint.why() for endpoint in candidates))
        reasons = [f"{endpoint.address}: {why}" for endpoint, why in zip(candidates, whys, strict=True)]
        addresses = ",".join(endpoint.address for endpoint in candidates)
        return Unavailable(operation, addresses, f"no connection within {timeout_seconds:.1f} s: {'; '.join(reasons)}")
