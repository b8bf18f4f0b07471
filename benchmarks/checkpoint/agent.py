"""The part of an agent that copies checkpoints, in a process of its own, as in a pod: agent.py ROOT RANKS MEMORY TLS.

The pod's name is that of the folder ROOT. It says its ports in ROOT/ports as JSON: that of the copies, and that of a
plain stream (``raw``). Each line of standard input is what the operator tells the agents of each other.
"""

import asyncio
import os
import ssl
import sys
import threading
import time
from pathlib import Path

import msgspec

from falcon_agent.checkpoint import protocol
from falcon_agent.checkpoint.replication import Copying, credentials
from falcon_agent.checkpoint.store import Store
from falcon_agent.launch.run_dir import RunDir
from falcon_core.wire.agent_config import AgentConfig
from falcon_core.wire.saves.peers import Peers

JOB = "0b2f8f4e-1d0c-4c1b-9a55-3f6a1f0f5f11"


async def _give(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a part of a file as it is: its path, where the part begins, and its size come in a line."""
    path, at, left = (await reader.readline()).decode().split()
    file = os.open(path, os.O_RDONLY)
    place, size = int(at), int(left)
    while size:
        piece = os.pread(file, min(protocol.PIECE_BYTES, size), place)
        writer.write(piece)
        await writer.drain()
        place, size = place + len(piece), size - len(piece)
    os.close(file)
    writer.close()


def raw(context: ssl.SSLContext) -> int:
    """Serve plain streams in a thread, over TLS as the copies are; return the port."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def begin() -> int:
        server = await asyncio.start_server(_give, "127.0.0.1", 0, ssl=context)
        port: int = server.sockets[0].getsockname()[1]
        return port

    return asyncio.run_coroutine_threadsafe(begin(), loop).result()


def main() -> None:
    root, ranks, memory, tls = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    run = RunDir(root / "run")
    store = Store(root / "own", ranks, memory)
    config = AgentConfig(
        namespace="ml",
        job="gpt2",
        job_uid=JOB,
        gateways=("gateway:7443",),
        gateway_tls_dir=str(tls),
        run_dir=str(root / "run"),
        copies_dir=str(root / "copies"),
    )
    copying = Copying(store, config, pod_uid=root.name, on_copied=run.write_copied)
    copying.start()
    while not copying.report.port:
        time.sleep(0.01)
    said = root / "ports.new"
    said.write_bytes(msgspec.json.encode([copying.report.port, raw(protocol.server_context(*credentials(tls)))]))
    said.rename(root / "ports")
    for line in sys.stdin:
        copying.take(msgspec.json.decode(line, type=Peers))


if __name__ == "__main__":
    main()
