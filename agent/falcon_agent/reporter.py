"""The agent's side of the bus: a report that is overwritten, a key under a lease, and the operator's commands.

If etcd is lost, a window of reports is lost and nothing else: everything here is tried again without end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from typing import TypeVar

import msgspec
import structlog

from falcon_agent.settings import Settings
from falcon_core.times import LIVENESS_TTL_SECONDS
from falcon_core.wire.messages import DetailRequest, Plan, Summary
from falcon_core.wire.reports import encode_summary
from falcon_etcd import Client, EtcdError, KeyValue, Lease, Relisted, Tls, WatchEvent

_log = structlog.get_logger()
_RETRY_SECONDS = 0.5
_LIVENESS_CHECK_SECONDS = 5.0
_Command = TypeVar("_Command", Plan, DetailRequest)


@contextlib.asynccontextmanager
async def connect(settings: Settings) -> AsyncIterator[Client]:
    """Connect with this job's certificate."""
    tls = None
    if (folder := settings.etcd_tls_dir) is not None:
        tls = Tls(ca=folder / "ca.crt", cert=folder / "tls.crt", key=folder / "tls.key")
    async with Client(endpoints=list(settings.etcd_endpoints), tls=tls) as client:
        yield client


class Reporter:
    """The agent's three loops on the bus, which never give up: liveness, reports, commands.

    ``forgotten`` says that the bus may have lost this pod's report, ``failed`` that the last report did not arrive.
    """

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._troubled = ""
        self.forgotten = False
        self.failed = False

    async def keep_alive(self) -> None:
        """Hold the liveness key under a lease. A lost lease, or a key that etcd has lost, is replaced."""
        lease: Lease | None = None
        key = self._settings.job.alive(self._settings.pod_uid)
        try:
            while True:
                try:
                    if lease is None or lease.lost.is_set():
                        lease = await self._client.lease(ttl_seconds=LIVENESS_TTL_SECONDS)
                        await self._client.put(key, self._settings.pod.encode(), lease.id)
                        self.forgotten = True
                        self._well()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(lease.lost.wait(), _LIVENESS_CHECK_SECONDS)
                except EtcdError as error:
                    self._trouble(error)
                    if lease is not None:
                        await lease.stop()
                        lease = None
                    await asyncio.sleep(_RETRY_SECONDS)
        finally:
            if lease is not None:
                await lease.close()

    async def report(self, summary: Summary, detailed: Collection[int]) -> None:
        """Overwrite this pod's report, with the detail of some ranks. A failure is logged once and sets ``failed``."""
        self.forgotten = False
        try:
            raw = encode_summary(summary, detailed)
            await self._client.put(self._settings.job.summary(self._settings.pod_uid), raw)
        except EtcdError as error:
            self.failed = True
            self._trouble(error)
        else:
            self.failed = False
            self._well()

    async def follow_commands(
        self, on_plan: Callable[[Plan], None], on_request: Callable[[DetailRequest], None]
    ) -> None:
        """Call ``on_plan`` and ``on_request`` with every command that is written.

        A command that etcd has lost changes nothing.
        """
        job = self._settings.job
        while True:
            try:
                async for event in self._client.watch_prefix(job.commands):
                    for kv in _written(event):
                        if kv.key == job.plan:
                            _hand_on(kv.value, Plan, on_plan)
                        elif kv.key == job.detail:
                            _hand_on(kv.value, DetailRequest, on_request)
            except EtcdError as error:
                self._trouble(error, "cannot read from etcd; retrying")
            await asyncio.sleep(_RETRY_SECONDS)

    def _trouble(self, error: EtcdError, what: str = "cannot write to etcd; retrying") -> None:
        kind = type(error).__name__
        if kind != self._troubled:
            self._troubled = kind
            _log.warning(what, error=str(error))

    def _well(self) -> None:
        if self._troubled:
            self._troubled = ""
            _log.info("etcd can be written again")


def _written(event: WatchEvent | Relisted) -> list[KeyValue]:
    if isinstance(event, Relisted):
        return list(event.kvs)
    return [event.kv] if event.type == "put" else []


def _hand_on(raw: bytes, kind: type[_Command], take: Callable[[_Command], None]) -> None:
    try:
        command = msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        _log.error("a command that cannot be read is ignored: are operator and agent of one release?", error=str(error))
        return
    take(command)
