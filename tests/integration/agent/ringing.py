"""A ring of pods without Kubernetes, on machines with a network each: launchers, ranks, agents, a gateway, an operator.

The operator is its own decisions (``decide``), made by the reports that the gateway has, and carried out as commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from falcon_core.recovery.probe.stop_targets import Reported, stops
from falcon_core.wire.measurement.check_links import LinksOrder
from falcon_core.wire.measurement.probe import ProbeOrder, ProbeReport
from falcon_core.wire.reporting.messages import DetailRequest, Plan, PlanMember, Summary
from falcon_core.wire.reporting.reports import decode_summary
from falcon_operator.base.effects import AskDetail, Event, OrderProbe
from falcon_operator.base.ports import Received
from tests.integration.agent.networks import Network, inside
from tests.integration.agent.pod import PROGRAMS, PYTHON, AgentPod, credentials, eventually, start_agent
from tests.integration.gateway.gateways import Job, Operator, Site
from tests.integration.ports import free_port
from tests.integration.shim.launching import Launcher
from tests.unit.chain.pods import Operator as Decider

AGENT = Path(__file__).parents[3] / "agent"
ITERATION_SECONDS = 0.3
LAST_WORDS = 4000  # characters of a pod's output that a failed test shows
TOKEN = "0123456789abcdef" * 2
NAME, UID = "gpt2", "3c9a1d52-7b0e-4c4e-9a55-3f6a1f0f5f11"


class Step(NamedTuple):
    """A step as a rank has noted it."""

    number: int
    loss: str  # exact
    at: float  # monotonic seconds


class Ring:
    """A job of one rank in each pod, on machine ``n`` the pod ``n``."""

    def __init__(self, folder: Path, site: Site, stream: Operator, network: Network, *, members: int = 0) -> None:
        """Start the launchers and agents. ``members``: of a group that reduces its gradients together; 0: all."""
        self._stream, self._network, self._site = stream, network, site
        self.size = len(network.names)
        self.folder = folder
        self.job = Job(NAME, UID, pods=self.size)
        self._credentials = credentials(folder / "tls", site, UID)
        stream.desired.announce(self.job.announcement())
        command = (str(PYTHON), str(PROGRAMS / "ring.py"), str(folder), *([str(members)] if members else []))
        self.launchers = [
            Launcher(
                folder / f"run-{place}",
                *command,
                options=("--python", str(AGENT)),
                environment={"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"},
                before=tuple(inside(name)),
            )
            for place, name in enumerate(network.names)
        ]
        self.agents = [self.start_agent(place) for place in range(self.size)]

    def start_agent(self, place: int):  # type: ignore[no-untyped-def]  # a Popen
        run_dir, log = self.launchers[place].run_dir, self.folder / f"agent-{place}.log"
        pod = AgentPod(f"gpt2-{place}", self._uid(place), f"node-{place}", run_dir, self._credentials, log)
        return start_agent(self._site, self.job.key, pod)

    def _uid(self, place: int) -> str:
        return self.job.pod(place).pod_uid

    def start(self) -> None:
        """Let the ranks train."""
        members = [
            PlanMember(replica=at, pod_uid=self._uid(at), pod_name=f"gpt2-{at}", node=f"node-{at}", first_rank=at)
            for at in range(self.size)
        ]
        plan = Plan(
            epoch=1,
            generation=1,
            phase="Run",
            procs_per_replica=1,
            world_size=self.size,
            master_addr=self._network.addresses[0],
            master_port=free_port(),
            members=members,
        )
        self.command("plan", msgspec.json.encode(plan))

    def command(self, name: str, payload: bytes) -> None:
        self._stream.desired.publish(self.job.command(name, payload))

    def stop(self) -> None:
        for agent in self.agents:
            agent.kill()
            agent.wait()
        for launcher in self.launchers:
            launcher.process.kill()
            launcher.process.communicate(timeout=120)

    def steps(self, rank: int = 0) -> list[Step]:
        """Return the steps that a rank has done."""
        with contextlib.suppress(OSError):
            lines = (self.folder / f"steps-{rank}").read_text().splitlines()
            fields = [line.split() for line in lines if line.count(" ") == 2]
            return [Step(int(number), loss, float(at)) for number, loss, at in fields]
        return []

    async def trained(self, steps: int) -> None:
        async def done() -> bool:
            return len(self.steps()) >= steps

        await eventually(done, f"{steps} steps")

    async def finish(self) -> None:
        """Let the ranks end after their next step, with success."""
        (self.folder / "goal").write_text("1")
        ended = [await asyncio.to_thread(launcher.wait, 60, state="Exited") for launcher in self.launchers]
        codes = [[rank.exit_code for rank in status.ranks] for status in ended]
        assert codes == [[0]] * self.size, "\n".join(map(self._last_words, range(self.size)))

    def _last_words(self, place: int) -> str:
        """Return what a pod shows after its end: the launcher's status, the newest output, the agent's newest log."""
        launcher, log = self.launchers[place], self.folder / f"agent-{place}.log"
        output = launcher.tail(0).decode(errors="replace")[-LAST_WORDS:]
        return f"pod {place}: {launcher.status()}\noutput:\n{output}\nagent:\n{log.read_text()[-LAST_WORDS:]}"

    def summaries(self) -> dict[str, Summary]:
        """Return the newest report of each pod, by uid."""
        found = {}
        for place in range(self.size):
            entry = self._stream.entry(self.job, place)
            if entry is not None and entry.payload:
                found[self._uid(place)] = decode_summary(entry.payload, self._uid(place))
        return found

    def probes(self) -> list[ProbeReport]:
        """Return what the pods say of a probe."""
        return [summary.probe for summary in self.summaries().values() if summary.probe is not None]


class Deciding:
    """The operator of a ring: it looks twice a second, and when a report has come."""

    def __init__(self, ring: Ring, addresses: list[str], spec: dict[str, object]) -> None:
        self.ring = ring
        self.decider = Decider(ring.size, spec)
        members = self.decider.intent.membership.members
        seats = [msgspec.structs.replace(member, pod_uid=ring.job.pod(at).pod_uid) for at, member in enumerate(members)]
        membership = msgspec.structs.replace(self.decider.intent.membership, members=seats)
        self.decider.intent = msgspec.structs.replace(self.decider.intent, membership=membership)
        self.decider.addresses = {f"node-{at}": address for at, address in enumerate(addresses)}
        self.orders: list[tuple[float, ProbeOrder]] = []
        self._seen: dict[str, Received] = {}
        self._asked: list[int] = []
        self._looked = 0.0

    @property
    def events(self) -> list[Event]:
        return self.decider.events

    def look(self) -> None:
        """Decide if there is news or it is time, and send the agents what they have to know."""
        now = time.monotonic()
        news = False
        for uid, summary in self.ring.summaries().items():
            if uid not in self._seen or self._seen[uid].summary.sequence != summary.sequence:
                self._seen[uid] = Received(summary=summary, at_seconds=now, gateway_unix=time.time())
                news = True
        if len(self._seen) < self.ring.size or not (news or now - self._looked >= 0.5):
            return
        self._looked = now
        self.decider.now = time.time()
        self.decider.decide(self._seen, now, secrets.token_hex(16))
        for effect in self.decider.effects:
            if isinstance(effect, OrderProbe):
                self._order(effect.order, now)
            elif isinstance(effect, AskDetail) and effect.ranks != self._asked:
                self._asked = effect.ranks
                request = DetailRequest(epoch=1, generation=effect.generation, ranks=effect.ranks)
                self.ring.command("detail", msgspec.json.encode(request))

    def _order(self, order: ProbeOrder, now: float) -> None:
        if [order] != [known for _, known in self.orders[-1:]]:
            self.orders.append((now, order))
            self.ring.command("probe", msgspec.json.encode(msgspec.structs.replace(order, epoch=1)))

    async def until(self, what: str, holds, seconds: float = 240.0) -> None:  # type: ignore[no-untyped-def]
        """Look again and again until something holds."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"{what}: {self.decider.status.summary}; {self.decider.events}"
            self.look()
            await asyncio.sleep(0.02)


class ByHand:
    """The test in the operator's place: probes whose orders it chooses."""

    def __init__(self, ring: Ring, addresses: list[str]) -> None:
        self.ring, self._addresses = ring, addresses
        self.number = 0

    async def prepared(self) -> list[ProbeReport]:
        """Let the pods get ready; return what they say."""
        self.number += 1
        self._order(phase="Prepare")

        async def ready() -> list[ProbeReport] | None:
            answers = [report for report in self.ring.probes() if report.number == self.number]
            known = [
                report for report in answers if report.links.port > 0 and report.ranks and report.ranks[0].channels
            ]
            return known if len(known) == self.ring.size else None

        found = await eventually(ready, "all pods are ready")
        assert found is not None
        return found

    def hold(
        self,
        reported: list[ProbeReport],
        *,
        lead_seconds: float = 1.0,
        deadline_seconds: float = 8.0,
        milliseconds: int = 200,
        machine_milliseconds: int = 0,
    ) -> None:
        """Order the ranks to stand still; the order may never be ended."""
        starts = [Reported(start, 1.0) for report in reported for start in report.ranks]
        where = stops(starts, self.ring.size, None, lead_seconds=lead_seconds, iteration_seconds=ITERATION_SECONDS / 2)
        ring = [(at, self._addresses[at], report.links.port) for at, report in enumerate(reported)]
        self._order(
            phase="Hold",
            stops=where.iterations,
            calls_before=where.calls_before,
            arrive_ms=5000,
            deadline_ms=round(1e3 * deadline_seconds),
            links=LinksOrder(
                number=self.number,
                token=TOKEN,
                milliseconds=milliseconds,
                ring=ring,
                machine_milliseconds=machine_milliseconds,
            ),
        )

    def _order(self, **fields: object) -> None:
        order = ProbeOrder(epoch=1, generation=1, number=self.number, **fields)  # type: ignore[arg-type]
        self.ring.command("probe", msgspec.json.encode(order))

    async def released(self) -> list[ProbeReport]:
        """Wait until all pods have measured, let the ranks go on, and return what the pods say when they do."""
        await self._said(lambda report: report.held and report.links.over, "all pods have measured")
        self._order(phase="Release")
        return await self._said(lambda report: report.is_open, "all ranks go on")

    async def _said(self, holds: Callable[[ProbeReport], bool], what: str) -> list[ProbeReport]:
        async def heard() -> list[ProbeReport] | None:
            answers = [report for report in self.ring.probes() if report.number == self.number]
            why = [report.why for report in answers if report.why]
            assert not why, f"{what}: {why}"
            return answers if len(answers) == self.ring.size and all(map(holds, answers)) else None

        found = await eventually(heard, what)
        assert found is not None
        return found
