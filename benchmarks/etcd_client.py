"""What the etcd client costs over bare gRPC stubs, and how fast it recovers, against a real etcd on this machine.

    make venv cluster-build && python -m benchmarks.etcd_client

One etcd member on loopback without fsync (the disk is not the question). Medians over sequential calls; client and bare
stub take turns in blocks, so that both see the same machine.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import grpc.aio

from falcon_etcd import Client, Compare, Op, WatchEvent
from falcon_etcd._proto import rpc_pb2 as pb
from tests.integration.etcd_server import EtcdServer

BLOCKS: Final = 20
CALLS_PER_BLOCK: Final = 100
CONCURRENT: Final = 64
VALUE: Final = bytes(1024)
IDLE_SECONDS: Final = 10
LEASES: Final = 100

Call = Callable[[int], Awaitable[object]]


def stub_calls(channel: grpc.aio.Channel) -> dict[str, Call]:
    """Make the same requests over gRPC alone: no deadline, no failover, no typed result."""
    put = channel.unary_unary("/etcdserverpb.KV/Put", pb.PutRequest.SerializeToString, pb.PutResponse.FromString)
    get = channel.unary_unary("/etcdserverpb.KV/Range", pb.RangeRequest.SerializeToString, pb.RangeResponse.FromString)
    txn = channel.unary_unary("/etcdserverpb.KV/Txn", pb.TxnRequest.SerializeToString, pb.TxnResponse.FromString)

    def request(number: int) -> pb.TxnRequest:
        key = f"/b/{number}".encode()
        return pb.TxnRequest(
            compare=[pb.Compare(key=key, target=pb.Compare.VERSION, result=pb.Compare.GREATER, version=0)],
            success=[pb.RequestOp(request_put=pb.PutRequest(key=key, value=VALUE))],
        )

    return {
        "put": lambda n: put(pb.PutRequest(key=f"/b/{n}".encode(), value=VALUE)),
        "get": lambda n: get(pb.RangeRequest(key=f"/b/{n}".encode())),
        "txn": lambda n: txn(request(n)),
    }


def client_calls(client: Client) -> dict[str, Call]:
    return {
        "put": lambda n: client.put(f"/b/{n}", VALUE),
        "get": lambda n: client.get(f"/b/{n}"),
        "txn": lambda n: client.txn([Compare.version(f"/b/{n}", ">", 0)], [Op.put(f"/b/{n}", VALUE)]),
    }


async def block(call: Call) -> list[float]:
    """Return the seconds of each of CALLS_PER_BLOCK calls, one after the other."""
    seconds = []
    for number in range(CALLS_PER_BLOCK):
        started = time.perf_counter()
        await call(number)
        seconds.append(time.perf_counter() - started)
    return seconds


async def throughput(call: Call) -> float:
    """Measure calls a second with CONCURRENT callers."""
    started = time.perf_counter()
    await asyncio.gather(*(block(call) for _ in range(CONCURRENT)))
    return CONCURRENT * CALLS_PER_BLOCK / (time.perf_counter() - started)


async def compare_calls(client: Client, channel: grpc.aio.Channel) -> None:
    ours, bare = client_calls(client), stub_calls(channel)
    print(f"{'':8}{'client p50':>12}{'stub p50':>12}{'client p99':>12}{'stub p99':>12}{'client/s':>10}{'stub/s':>10}")
    for name in ours:
        samples: tuple[list[float], list[float]] = ([], [])
        for _ in range(BLOCKS):
            for call, into in zip((ours[name], bare[name]), samples, strict=True):
                into.extend(await block(call))
        medians = [f"{statistics.median(s) * 1e6:9.0f} µs" for s in samples]
        tails = [f"{statistics.quantiles(s, n=100)[98] * 1e6:9.0f} µs" for s in samples]
        rates = [f"{await throughput(call):10.0f}" for call in (ours[name], bare[name])]
        print(f"{name:8}{''.join(medians)}{''.join(tails)}{''.join(rates)}")


async def event_delay(client: Client) -> None:
    """Measure from the start of a put to its event in a watch of the same process."""
    seconds: list[float] = []
    watch = client.watch_prefix("/e/", await client.put("/e/0", b"") + 1)
    first = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0.5)
    for _ in range(CALLS_PER_BLOCK):
        started = time.perf_counter()
        await client.put("/e/0", VALUE)
        assert isinstance(await first, WatchEvent)
        seconds.append(time.perf_counter() - started)
        first = asyncio.ensure_future(anext(watch))
    first.cancel()
    print(f"put → event in a watch: p50 {statistics.median(seconds) * 1e6:.0f} µs")


async def resume_delay(server: EtcdServer, client: Client) -> None:
    """Measure from etcd's first answer after a SIGKILL and restart to the first event in a watch that was open."""
    delays: list[float] = []
    watch = client.watch_prefix("/r/", await client.put("/r/0", b"") + 1)
    for number in range(5):
        event = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0.5)
        server.kill()
        server.start()
        async with server.client() as writer:
            await writer.put("/r/0", str(number).encode())
            answered = time.perf_counter()
        await event
        delays.append(time.perf_counter() - answered)
    milliseconds = ", ".join(f"{delay * 1e3:.0f}" for delay in sorted(delays))
    print(f"etcd killed and restarted; its first answer → event in the old watch: {milliseconds} ms")


async def idle_cost(client: Client) -> None:
    """Measure the CPU of this process while it keeps LEASES leases of 3 s and one watch."""
    leases = await asyncio.gather(*(client.lease(3) for _ in range(LEASES)))
    before = resource.getrusage(resource.RUSAGE_SELF)
    await asyncio.sleep(IDLE_SECONDS)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"one lease of 3 s kept alive: {cpu / IDLE_SECONDS / LEASES * 100:.3f} % of a core; ", end="")
    print(f"resident memory of this process {after.ru_maxrss / 1024:.0f} MiB")
    await asyncio.gather(*(lease.close() for lease in leases))


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = EtcdServer(Path(folder))
        server.start()
        try:
            async with server.client() as client, grpc.aio.insecure_channel(server.endpoints[0]) as channel:
                await compare_calls(client, channel)
                await event_delay(client)
                await idle_cost(client)
                await resume_delay(server, client)
        finally:
            server.kill()


if __name__ == "__main__":
    asyncio.run(main())
