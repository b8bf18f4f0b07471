"""Stand in for the proxy of a mesh: pass on all TCP of the pod, which the kernel redirects to two ports.

A line for each connection says in which direction it went, and where to. Nothing is inspected or encrypted.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import struct
import time

OUTBOUND_PORT, INBOUND_PORT = 15001, 15006
INBOUND_SOURCE = "127.0.0.6"  # from which the pod sees connections come in, as in Istio; not redirected again
ORIGINAL_DESTINATION = 80  # SO_ORIGINAL_DST of linux/netfilter_ipv4.h
DRAIN_SECONDS = 5.0  # after SIGTERM: other containers may have something left to say
CHUNK_BYTES = 1 << 18


def original_destination(connection: socket.socket) -> tuple[str, int]:
    """Return the address and port to which a redirected connection was made."""
    raw = connection.getsockopt(socket.SOL_IP, ORIGINAL_DESTINATION, 16)
    port, address = struct.unpack_from("!2xH4s", raw)
    return socket.inet_ntoa(address), port


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on bytes until their sender ends; then end as well."""
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def carry(direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Connect to where a redirected connection was to go, and pass on both directions."""
    address, port = original_destination(writer.get_extra_info("socket"))
    said = {"direction": direction, "address": address, "port": port}
    try:
        source = (INBOUND_SOURCE, 0) if direction == "inbound" else None
        far_reader, far_writer = await asyncio.open_connection(address, port, local_addr=source)
    except OSError as error:
        print(json.dumps({**said, "error": str(error)}), flush=True)
        writer.transport.abort()
        return
    print(json.dumps(said), flush=True)
    for each in (writer, far_writer):
        each.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))
    except OSError:
        pass  # one side was reset: so is the other one
    finally:
        for each in (writer, far_writer):
            each.transport.abort()


async def main() -> None:
    """Serve both ports until SIGTERM, and for a while after it."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    for direction, port in (("outbound", OUTBOUND_PORT), ("inbound", INBOUND_PORT)):

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str = direction) -> None:
            await carry(way, reader, writer)

        await asyncio.start_server(serve, "0.0.0.0", port, limit=CHUNK_BYTES)  # the pod's own network
    print(json.dumps({"event": "serving", "unix_seconds": time.time()}), flush=True)
    await ended.wait()
    await asyncio.sleep(DRAIN_SECONDS)


asyncio.run(main())
