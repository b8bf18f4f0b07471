"""A TCP relay whose wire can be cut, or made one-way, between a client and a server that both stay alive."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType

from tests.integration.ports import free_port


class Relay:
    """Forwards 127.0.0.1:port to ``target``. ``async with`` opens and closes it."""

    def __init__(self, target: str) -> None:
        host, port = target.split(":")
        self._target = (host, int(port))
        self._port = free_port()
        self._server: asyncio.Server | None = None
        self._wires: set[asyncio.Task[None]] = set()
        self._epoch = 0

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def restore(self) -> None:
        """Accept connections (again)."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    def hold_answers(self) -> None:
        """Let requests pass and hold answers on the connections that exist; new connections are not affected."""
        self._epoch += 1

    async def cut(self) -> None:
        """Close every connection and refuse new connections."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for wire in self._wires:
            wire.cancel()
        await asyncio.gather(*self._wires, return_exceptions=True)

    async def __aenter__(self) -> Relay:
        await self.restore()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._wires.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                upstream_reader, upstream_writer = await asyncio.open_connection(*self._target)
                with contextlib.closing(upstream_writer):
                    async with asyncio.TaskGroup() as group:
                        group.create_task(self._pump(reader, upstream_writer, answers=False))
                        group.create_task(self._pump(upstream_reader, writer, answers=True))
        except* OSError:
            pass
        finally:
            self._wires.discard(task)
            writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        epoch = self._epoch
        while data := await reader.read(65_536):
            if answers and epoch != self._epoch:
                await asyncio.Event().wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError("one side closed; close the other")
