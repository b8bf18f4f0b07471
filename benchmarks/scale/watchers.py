"""One watcher in a process of its own: from its start to the last pod, and what it holds then.

KUBECONFIG=… python -m benchmarks.scale.watchers inventory 12800
KUBECONFIG=… python -m benchmarks.scale.watchers kopf 12800
KUBECONFIG=… python -m benchmarks.scale.watchers memory 12800
"""

from __future__ import annotations

import asyncio
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import kopf
import msgspec

from falcon_operator.cluster import pods
from falcon_operator.cluster.cache import views
from falcon_operator.cluster.inventory import Inventory
from falcon_operator.cluster.transport import Transport, load_configuration
from falcon_operator.runtime.handlers import connection_info, kopf_settings


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a watcher took until it held everything."""

    objects: int
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    grown_mib: float = 0.0  # resident memory at the end, beyond that at the start
    traced_bytes: float = 0.0  # of Python's own memory, for each pod


async def inventory(pod_count: int) -> int:
    """Hold all pods and all nodes. Return their number."""
    transport = Transport(await load_configuration(), lambda: None)
    found = Inventory(transport, [])
    task = asyncio.create_task(found.run(lambda _: None, lambda _: None))
    await found.synced()
    count = len(found.all_pods()) + len(found.nodes)
    assert len(found.all_pods()) == pod_count, "all of them"
    task.cancel()
    await asyncio.wait({task})
    await transport.close()
    return count


async def with_kopf(pod_count: int) -> int:
    """Let kopf report all pods, with the operator's settings for it. Return their number."""
    configuration = await load_configuration()
    registry = kopf.OperatorRegistry()
    names: set[str] = set()
    complete = asyncio.Event()

    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connection_info(configuration)

    async def on_pod(event: kopf.RawEvent, **_: Any) -> None:
        names.add(str(event["object"]["metadata"]["name"]))
        if len(names) == pod_count:
            complete.set()

    kopf.on.login(registry=registry)(login)
    kopf.on.event("", "v1", "pods", registry=registry)(on_pod)
    settings = kopf_settings()
    settings.watching.label_selectors["", "v1", "pods"] = pods.SELECTOR
    tasks = await kopf.spawn_tasks(registry=registry, settings=settings, standalone=True, clusterwide=True)
    await complete.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return len(names)


async def memory(pod_count: int) -> Measured:
    """Measure Python's own memory for the pods in a mirror; the times are those of tracing, and say nothing."""
    transport = Transport(await load_configuration(), lambda: None)
    listed = views.page(await transport.call("GET", "/api/v1/pods", query={"labelSelector": pods.SELECTOR})).items
    await transport.close()
    mirror = pods.PodMirror()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    mirror.listed([pods.item(body) for body in listed], 2**62)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(mirror) == pod_count, "all of them"
    return Measured(objects=len(mirror), traced_bytes=(after - before) / len(mirror))


async def watched(watch: Callable[[int], Awaitable[int]], pod_count: int) -> Measured:
    """Measure a watcher from its start until it holds everything."""
    resident, began, used = resident_mib(), time.monotonic(), time.process_time()
    objects = await watch(pod_count)
    return Measured(
        objects=objects,
        seconds=time.monotonic() - began,
        cpu_seconds=time.process_time() - used,
        grown_mib=resident_mib() - resident,
    )


def resident_mib() -> float:
    """Return this process's resident memory."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def main() -> None:
    what, pod_count = sys.argv[1], int(sys.argv[2])
    if what == "memory":
        measured = asyncio.run(memory(pod_count))
    else:
        measured = asyncio.run(watched(with_kopf if what == "kopf" else inventory, pod_count))
    print(msgspec.json.encode(measured).decode())


if __name__ == "__main__":
    main()
