"""What a tenant with a job's certificate can do to the others: each attack is run, and its effects are measured.

make venv gateway && python -m benchmarks.scale.adversary           # prints the table; about four minutes
make venv gateway && python -m benchmarks.scale.adversary --write   # also writes it into ADVERSARY.md

Two real gateways and a real etcd run. An honest job has one agent at each gateway, which reports urgently twice a
second and beats; the time from each report to the operator's stream is measured. The attacks come from a process of
their own, with the certificate of another job.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.results import provenance, put
from benchmarks.scale.attacks import ATTACKS, Target, launch
from falcon_core.wire.reporting.messages import Summary
from falcon_core.wire.reporting.reports import encode_summary
from falcon_gateway import AgentClient, Batch, Desired, Leader, OperatorClient, Subscriber
from falcon_operator.api.common import ObjectMeta
from falcon_operator.api.warmpool import SpareStatus, WarmPool, WarmPoolSpec, WarmPoolStatus
from falcon_operator.bus.reports import ReportsCache
from falcon_operator.intent.model.claim_limits import allowance
from falcon_operator.pool.claims import claim
from tests.integration.gateway.gateways import BERT, GPT, Gateway, Site

ROOT: Final = Path(__file__).resolve().parents[2]
TABLE: Final = Path(__file__).with_name("ADVERSARY.md")
SECONDS: Final = 10.0  # of each attack
REPORT_EVERY_SECONDS: Final = 0.5
COUNTERS: Final = tuple(
    f"falcon_gateway_{name}_total" for name in ("refused", "reports", "series", "paused", "thinned")
)
PAGES: Final = "falcon_gateway_pages_refused_total"  # has no job: its clients show no certificate
PASSED: Final = "falcon_gateway_passed_bytes_total"
LOOK_SECONDS: Final = 0.05
MIB: Final = 1 << 20
replace = msgspec.structs.replace


@dataclass
class Honest:
    """What the honest job notices."""

    delays_seconds: list[float] = field(default_factory=list)  # until the report, or a newer one of its pod, arrived
    replaced: int = 0  # reports for which a newer one of their pod arrived: a report is the pod's whole state
    overdue: int = 0  # reports that had not arrived when the measurement ended, and nothing newer either
    lost: float = 0  # times that a gateway called an agent lost
    sessions: int = 0  # streams beyond the first of each agent
    late_seconds: float = 0.0  # the most by which its own process, that of operator and agents, was late to wake

    @property
    def noticed(self) -> bool:
        """Return whether more than a delay was noticed."""
        return not self.delays_seconds or bool(self.overdue or self.lost or self.sessions)

    def words(self) -> str:
        ordered = sorted(self.delays_seconds)
        if not ordered:
            return "**no report arrived**"
        middle, late = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
        said = f"reports arrive after {1000 * middle:.0f} ms (p99 {1000 * late:.0f} ms)"
        if self.replaced:
            said += f", {self.replaced} of {len(ordered)} replaced by the next"
        troubles = {"missing": self.overdue, "called lost": self.lost, "new streams": self.sessions}
        said += f"; its own process late by up to {1000 * self.late_seconds:.0f} ms"
        return said + "".join(f", **{count:.0f} {name}**" for name, count in troubles.items() if count)


class Observer:
    """The operator's side: its streams to both gateways, and the reports of the honest job."""

    def __init__(self) -> None:
        self.cache = ReportsCache()
        self.honest = Honest()
        self.sent: dict[bytes, tuple[int, float]] = {}  # payload → pod and time, oldest first
        self._sessions: dict[str, set[int]] = {}

    def take(self, batch: Batch) -> None:
        now = time.monotonic()
        self.cache.take(batch, now)
        if batch.job_uid != BERT.uid:
            return
        for entry in batch.entries:
            self._sessions.setdefault(entry.pod_uid, set()).add(entry.session)
            if entry.payload in self.sent:
                self._arrived(entry.payload, now)
            self.honest.lost += not entry.alive

    def _arrived(self, payload: bytes, now: float) -> None:
        """Note the arrival of a report, and with it that of all older ones of its pod."""
        pod = self.sent[payload][0]
        for known, (of, sent) in list(self.sent.items()):
            if of == pod:
                del self.sent[known]
                self.honest.delays_seconds.append(now - sent)
                self.honest.replaced += known != payload
            if known == payload:
                return

    def streams(self) -> int:
        return sum(map(len, self._sessions.values()))


@dataclass
class Row:
    """A line of the table."""

    attack: str
    attacker: str
    others: str
    seen: str
    noticed: bool  # by the others, beyond a later report

    def line(self) -> str:
        return f"| {self.attack} | {self.attacker} | {self.others} | {self.seen} |"


@dataclass
class Scene:
    """What runs throughout."""

    site: Site
    gateways: list[Gateway]
    observer: Observer
    desired: Desired

    def target(self) -> Target:
        tls = self.site.tls(self.site.jobs, GPT.uid)
        return Target(
            gateways=[gateway.agents for gateway in self.gateways],
            pages=self.gateways[0].pages,
            ca=tls.ca,
            cert=tls.cert,
            key=tls.key,
            namespace=GPT.namespace,
            job=GPT.name,
            pods=[GPT.pod(index).pod_uid for index in range(GPT.pods)],
            other_job=BERT.name,
            other_pod=BERT.pod(0).pod_uid,
            seconds=SECONDS,
        )

    async def counters(self) -> Counter[str]:
        """Return the attacker's counters of all gateways and of the operator."""
        found: Counter[str] = Counter()
        for gateway in self.gateways:
            for sample in await gateway.samples():
                name, labels = sample.name, sample.labels
                ours = labels.get("job") in (GPT.uid, "unknown") or name == PAGES
                if ours and name in (*COUNTERS, PAGES, PASSED) and labels.get("outcome") != "accepted":
                    detail = labels.get("reason") or labels.get("outcome")
                    found[f"{name}{{{detail}}}" if detail else name] += int(sample.value)
        for (_, job, reason), count in self.observer.cache.refused().items():
            found[f"falcon_reports_refused_total{{{reason}}}"] += count if job == GPT.name else 0
        return found


@contextlib.asynccontextmanager
async def running(root: Path) -> AsyncIterator[Scene]:
    """Run etcd, two gateways, the operator's streams, a reader of series at each gateway, and the honest agents."""
    site = Site(root)
    site.etcd.start()
    gateways = [site.gateway(FALCON_HANDSHAKES_PER_SECOND="20") for _ in range(2)]  # the default
    observer, desired = Observer(), Desired()
    for job in (GPT, BERT):
        desired.announce(job.announcement())
    desired.all_announced()
    try:
        async with contextlib.AsyncExitStack() as stack:
            for index, gateway in enumerate(gateways):
                tls = site.tls(site.control, "root")
                client = OperatorClient(gateway.operator, tls, desired, Leader("operator-0", 1), observer.take)
                stack.callback(asyncio.create_task(client.run()).cancel)
                reader = Subscriber(gateway.operator, site.tls(site.control, "anomalies"), "anomalies-0")
                stack.callback(asyncio.create_task(_read_series(reader)).cancel)
                await gateway.ready()
                agent = await stack.enter_async_context(site.agent(BERT, index, gateway))
                await agent.connected()
                stack.callback(asyncio.create_task(_report(agent.client, observer, index)).cancel)
            stack.callback(asyncio.create_task(_command(desired)).cancel)
            stack.callback(asyncio.create_task(_watch_the_clock(observer)).cancel)
            yield Scene(site, gateways, observer, desired)
    finally:
        site.stop()


async def _read_series(reader: Subscriber) -> None:
    async for _ in reader.chunks():
        pass


async def _report(client: AgentClient, observer: Observer, pod: int) -> None:
    """Report as an honest agent that has news twice a second."""
    for number in itertools.count():
        payload = encode_summary(Summary(pod_uid="", sequence=number, unix_ns=pod, generation=1), ())
        observer.sent[payload] = (pod, time.monotonic())
        client.report(payload, urgent=True)
        await asyncio.sleep(REPORT_EVERY_SECONDS)


async def _watch_the_clock(observer: Observer) -> None:
    """Note how late this process wakes: what the machine, not a gateway, has delayed."""
    while True:
        due = time.monotonic() + LOOK_SECONDS
        await asyncio.sleep(LOOK_SECONDS)
        observer.honest.late_seconds = max(observer.honest.late_seconds, time.monotonic() - due)


async def _command(desired: Desired) -> None:
    """Publish commands for both jobs; the attacker's are so large that a reader who takes none is noticed."""
    while True:
        for job, size in ((GPT, MIB), (BERT, 1_000)):
            desired.publish(job.plan(job.name.encode() + bytes(size)))
        await asyncio.sleep(REPORT_EVERY_SECONDS)


async def measure(scene: Scene, pool: ProcessPoolExecutor, number: int) -> Row:
    """Run one attack."""
    observer = scene.observer
    await asyncio.sleep(3)  # what the attack before has left behind
    before, streams = await scene.counters(), observer.streams()
    observer.honest, observer.sent = Honest(), {}
    said = await asyncio.get_running_loop().run_in_executor(pool, launch, number, scene.target())
    honest, waiting = observer.honest, dict(observer.sent)
    await asyncio.sleep(2)
    honest.overdue = len(waiting.keys() & observer.sent.keys())
    honest.sessions = observer.streams() - streams
    grown = await scene.counters() - before
    passed = grown.pop(PASSED, 0)
    if passed:
        said += f"; {passed / MIB:.2f} MiB of it go on to operator and etcd"
    seen = ", ".join(f"`{name}` +{count:,}" for name, count in sorted(grown.items()))
    return Row(ATTACKS[number].name, said, honest.words(), seen or "–", honest.noticed)


def claims_in_an_hour(ready: int = 512) -> Row:
    """Claim spare after spare for false stragglers, each time by a job that is deleted and made again."""
    spares = [SpareStatus(node=f"node-{number}", state="Ready", gemm_gflops="1") for number in range(ready)]
    pool = WarmPool(
        metadata=ObjectMeta(name="spares"),
        spec=WarmPoolSpec(node_selector={}, size=ready),
        status=WarmPoolStatus(spares=spares),
    )
    now = time.time()
    taken = 0
    for number in range(ready):
        status = claim(pool, f"attacker/job/uid-{number}/1", "attacker", now=now + number)
        if status is None:
            break
        taken += 1
        pool = replace(pool, status=status)
    message = allowance(pool, "attacker/job/new/", now + taken).message
    granted = claim(pool, "honest/job/uid/1", "honest", now=now + taken) is not None
    return Row(
        f"false stragglers, the job made again each time ({ready} spares ready, default limits; the pure functions)",
        f"gets {taken} spares in an hour, then none",
        "another namespace gets its spare" if granted else "**another namespace gets no spare**",
        f"condition `WarmPoolUsable`: {message.partition(';')[0]}; Event `WarmPoolUnusable`, `falcon_events_total`",
        not granted,
    )


async def measure_all() -> list[Row]:
    """Run all attacks, one after the other."""
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(1, get_context("spawn")) as pool:
        async with running(Path(folder)) as scene:
            rows = []
            for number, attack in enumerate(ATTACKS):
                print(f"{attack.name} …", file=sys.stderr, flush=True)
                rows.append(await measure(scene, pool, number))
                print(rows[-1].line(), file=sys.stderr, flush=True)
            return [*rows, claims_in_an_hour()]


def falls_short(rows: list[Row]) -> list[str]:
    """Return what the others noticed beyond a later report."""
    return [f"{row.attack}: {row.others}" for row in rows if row.noticed]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale.adversary",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--write", action="store_true", help="write the table into ADVERSARY.md")
    parser.add_argument("--check", action="store_true", help="exit code 1 where the honest job noticed an attack")
    options = parser.parse_args()
    head, rows = provenance(note=f"; each attack {SECONDS:.0f} s"), asyncio.run(measure_all())
    lines = [
        "| attack | effect on the attacker | effect on the honest job | how it is seen |",
        "|---|---|---|---|",
        *(row.line() for row in rows),
    ]
    body = head + "\n" + "\n".join(lines) + "\n"
    print(body)
    if options.write:
        put(TABLE, body)
    short = falls_short(rows)
    for noticed in short:
        print(f"Falls short: {noticed}")
    return 1 if options.check and short else 0


if __name__ == "__main__":
    raise SystemExit(main())
