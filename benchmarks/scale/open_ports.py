"""What a pod without a certificate or a token can do to Falcon's open ports: each attack is run and measured.

make venv gateway cluster-build && python -m benchmarks.scale.open_ports           # prints the table; five minutes
make venv gateway cluster-build && python -m benchmarks.scale.open_ports --write   # also writes it into ADVERSARY.md

Operator, gateway and anomaly service run as the chart starts them, before a real API server, and a holder of
checkpoints in a process of its own. Meanwhile an agent reports to the gateway twice a second, the pages of health are
asked ten times a second, a reader with a good token reads the metrics each second, and an operator that has just
started connects to the agent's gateway. The attacks come from a process of their own, at 64 addresses of loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import socket
import ssl
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from benchmarks.results import provenance, put
from benchmarks.scale.held_copies import HolderProcess
from benchmarks.scale.processes import resident_mib
from benchmarks.scale.strangers import STRANGERS, Port, Stranger, launch
from tests.integration.chart.components import ACCOUNTS, Components, Metrics, cluster_with_chart, started, token
from tests.integration.gateway.gateways import GPT, Agent, Gateway, Operator, Site

TABLE: Final = Path(__file__).with_name("ADVERSARY.md")
SECONDS: Final = 8.0  # of each attack
ANSWER_SECONDS: Final = 5.0  # in which a kubelet's probe or a reader has to be answered at the latest
MOST_MIB: Final = 96.0  # by which a process may grow: a quarter of the smallest limit of their containers, an agent's
REST_SECONDS: Final = 6.0  # between two attacks: handshakes that have begun end within 5 s


@dataclass
class Asked:
    """What a client was answered during an attack."""

    delays_seconds: list[float] = field(default_factory=list)
    refused: int = 0  # or not answered

    def words(self, what: str) -> str:
        late = f"{1000 * max(self.delays_seconds, default=0):.0f} ms at most"
        said = f"{len(self.delays_seconds)} {what} ({late})"
        return f"{said}, **{self.refused} not**" if self.refused else said

    @property
    def is_late(self) -> bool:
        return bool(self.refused) or not self.delays_seconds or max(self.delays_seconds) > ANSWER_SECONDS


@dataclass(frozen=True)
class Victim:
    """A process with open ports, and its honest clients."""

    name: str
    pid: int
    ports: dict[str, int]  # kind of port → number
    clients: dict[str, tuple[float, Callable[[], bool]]]  # who → seconds between two questions, and the question


@dataclass
class Row:
    """A line of the table."""

    attack: str
    victim: str
    attacker: str
    grown_mib: float
    clients: dict[str, Asked]
    agent: Asked
    sessions: int  # new ones of the agent

    def line(self) -> str:
        said = [asked.words(who) for who, asked in self.clients.items()]
        agent = "kept its stream" if not self.sessions else f"**connected {self.sessions} times more**"
        return (
            f"| {self.attack} | {self.victim} | {self.attacker} | {self.grown_mib:+.0f} MiB | {'; '.join(said)} |"
            f" {self.agent.words('reports')}, {agent} |"
        )

    @property
    def falls_short(self) -> bool:
        others = any(asked.is_late for asked in (*self.clients.values(), self.agent))
        return others or bool(self.sessions) or self.grown_mib > MOST_MIB


class Honest:
    """An agent that reports to the gateway, and the operator's stream that hears it."""

    def __init__(self, agent: Agent, operator: Operator) -> None:
        self._agent = agent
        self._operator = operator
        self.asked = Asked()

    @property
    def sessions(self) -> int:
        entries = [entry for batch in self._operator.batches for entry in batch.entries]
        return len({entry.session for entry in entries})

    async def report(self) -> None:
        for number in itertools.count():
            payload, begun = b"report %d" % number, time.monotonic()
            self._agent.client.report(payload, urgent=True)
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._operator.sees(GPT, 0, payload)
                self.asked.delays_seconds.append(time.monotonic() - begun)
            except TimeoutError:
                self.asked.refused += 1
            await asyncio.sleep(0.5)


@contextlib.asynccontextmanager
async def reporting(
    folder: Path, environment: dict[str, str]
) -> AsyncIterator[tuple[Gateway, Honest, Callable[[], bool]]]:
    """Run a gateway with an etcd, and an agent that reports to it.

    Yield both, and a function that connects to the gateway as a new operator and returns whether it was served.
    """
    site = Site(folder)
    site.etcd.start()
    gateway = site.gateway(**environment)
    try:
        async with site.leader(gateway, GPT) as operator, site.agent(GPT, 0) as agent:
            await agent.connected()
            honest = Honest(agent, operator)
            work = asyncio.create_task(honest.report())
            try:
                yield gateway, honest, _new_operator(site, gateway)
            finally:
                work.cancel()
    finally:
        site.stop()


def _new_operator(site: Site, gateway: Gateway) -> Callable[[], bool]:
    host, _, port = gateway.operator.rpartition(":")
    context = ssl.create_default_context(cafile=str(site.control.ca))
    context.check_hostname = False
    issued = site.control.client("root")
    context.load_cert_chain(issued.cert, issued.key)
    context.set_alpn_protocols(["h2"])

    def connect() -> bool:
        """Return whether the gateway sends the first frame of HTTP/2, which follows the handshake."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host, int(port)), ANSWER_SECONDS) as opened,
            context.wrap_socket(opened) as secured,
        ):
            return secured.recv(9) != b""
        return False

    return connect


def _clients(metrics: Metrics, good: str) -> dict[str, tuple[float, Callable[[], bool]]]:
    def health() -> bool:
        url = f"http://127.0.0.1:{metrics.plain}/healthz"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as page:
            return bool(page.status == 200)
        return False

    return {"health checks": (0.1, health), "reads with a token": (1.0, lambda: metrics.read(good)[0] == 200)}


@contextlib.asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[tuple[list[Victim], Honest]]:
    """Run all processes, and the agent."""
    async with contextlib.AsyncExitStack() as stack:
        cluster = stack.enter_context(cluster_with_chart())
        components = Components(cluster, folder / "components")
        components.folder.mkdir()
        stack.callback(lambda: [stop() for stop in reversed(components.stops)])
        good = token(cluster, "monitoring", "prometheus")
        victims = []
        for name in ACCOUNTS:
            metrics = await asyncio.to_thread(started, components, name)
            ports = {"plain": metrics.plain, "token": metrics.port}
            if metrics.webhook:
                ports["webhook"] = metrics.webhook
            victims.append(Victim(name, metrics.pid, ports, _clients(metrics, good)))
        holder = stack.enter_context(HolderProcess(folder / "holder"))
        asked = {"questions of a peer": (0.2, holder.answers)}
        victims.append(Victim("holder of checkpoints", holder.pid, {"copies": holder.port}, asked))
        (folder / "gateway").mkdir()
        gateway, honest, new_operator = await stack.enter_async_context(
            reporting(folder / "gateway", {"FALCON_HANDSHAKES_PER_SECOND": "20"})
        )
        own = Victim(
            "gateway of the agent",
            gateway.pid,
            {
                kind: int(address.rpartition(":")[2])
                for kind, address in (
                    ("agents", gateway.agents),
                    ("operator", gateway.operator),
                    ("plain", gateway.pages),
                )
            },
            {"connections of a new operator": (0.2, new_operator)},
        )
        yield [*victims, own], honest


async def _ask(asked: Asked, every: float, question: Callable[[], bool]) -> None:
    while True:
        begun = time.monotonic()
        if await asyncio.to_thread(question):
            asked.delays_seconds.append(time.monotonic() - begun)
        else:
            asked.refused += 1
        await asyncio.sleep(every)


async def _watch_memory(pid: int, seen: list[float]) -> None:
    while True:
        seen.append(resident_mib(pid))
        await asyncio.sleep(0.1)


async def measure(stranger: int, victim: Victim, port: Port, honest: Honest, pool: ProcessPoolExecutor) -> Row:
    """Run one attack on one port."""
    await asyncio.sleep(REST_SECONDS)
    honest.asked, sessions = Asked(), honest.sessions
    seen = [resident_mib(victim.pid)]
    clients = {who: Asked() for who in victim.clients}
    work: list[Awaitable[None]] = [_watch_memory(victim.pid, seen)]
    work += [_ask(clients[who], *asked) for who, asked in victim.clients.items()]
    tasks = [asyncio.ensure_future(each) for each in work]
    said = await asyncio.get_running_loop().run_in_executor(pool, launch, stranger, port, SECONDS)
    agent, honest.asked = honest.asked, Asked()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    name = f"{victim.name}, port of {'health and metrics' if port.kind == 'plain' else port.kind}"
    grown = max(seen) - seen[0]
    return Row(STRANGERS[stranger].name, name, said, grown, clients, agent, honest.sessions - sessions)


async def measure_all(only: str) -> list[Row]:
    """Run all attacks, one after the other."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(1, get_context("spawn")) as pool:
        async with scene(Path(folder)) as (victims, honest):
            for number, victim in itertools.product(range(len(STRANGERS)), victims):
                for port in _attacked(STRANGERS[number], victim):
                    if only not in victim.name:
                        continue
                    rows.append(await measure(number, victim, port, honest, pool))
                    print(rows[-1].line(), file=sys.stderr, flush=True)
    return rows


def _attacked(stranger: Stranger, victim: Victim) -> list[Port]:
    return [Port(kind, number) for kind, number in victim.ports.items() if kind in stranger.kinds]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale.open_ports",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", help="the victims whose names contain this")
    parser.add_argument("--write", action="store_true", help="write the table into ADVERSARY.md")
    parser.add_argument("--check", action="store_true", help="exit code 1 where others notice an attack")
    options = parser.parse_args()
    head, rows = provenance(note=f"; each attack {SECONDS:.0f} s"), asyncio.run(measure_all(options.only))
    lines = [
        "| attack | on | effect on the attacker | memory of the process | its honest clients, answered | an agent |",
        "|---|---|---|---|---|---|",
        *(row.line() for row in rows),
    ]
    body = head + "\n" + "\n".join(lines) + "\n"
    print(body)
    if options.write:
        put(TABLE, body, "ports")
    short = [row for row in rows if row.falls_short]
    for row in short:
        print(f"Falls short: {row.attack}, {row.victim}")
    return 1 if options.check and short else 0


if __name__ == "__main__":
    raise SystemExit(main())
