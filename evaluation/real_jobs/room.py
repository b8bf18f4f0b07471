"""Plays a case with one code: the closed loop from ring records to actions and back to the nodes.

The membership is kept here and not by ``falcon_sim.cluster.cluster``, because that is core's own of one commit: here
two commits are compared. A spare takes over 15 s after it was asked for, and training goes on 30 s after the switch.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable

import numpy as np

from evaluation.real_jobs.chain import RankAgent
from evaluation.real_jobs.outcome import Case, Code, Facts, Incident, Order, Outcome, Pod, Said, Seen, Taken
from evaluation.real_jobs.patterns import PATTERNS
from evaluation.real_jobs.scene import SAMPLE_EVERY, entropy, scene_of
from evaluation.real_jobs.worlds.overlapped import LAYERS, OverlappedWorld
from evaluation.real_jobs.worlds.rounds import ROUND_STEPS, RoundsWorld, Steps
from evaluation.real_jobs.worlds.unseen import SHARED, UnseenWorld
from evaluation.real_jobs.worlds.world import START_UNIX_NS, World
from falcon_core.topology.parallelism import Axis, Parallelism
from falcon_core.wire.reporting.messages import RankSignals
from falcon_core.wire.ring import RecordArray
from falcon_sim.job.model import Block
from falcon_sim.job.records import Ints

LOOK_ITERATIONS = 4  # between two looks of the operator
SPARES = 2
POD_SECONDS, STANDSTILL_SECONDS = 15.0, 30.0
_CRC_ITERATIONS = 64
_SETTLED = 100


class Room:
    """One case under one code."""

    def __init__(self, case: Case, code_of: Callable[[Facts], Code]) -> None:
        self.case = case
        pattern = PATTERNS[case.pattern]
        self.scene = scene_of(pattern, case.world, case.level, case.seed)
        drawn = entropy(pattern, case.world, case.level, case.seed)
        steps = ROUND_STEPS.get(pattern.kind)
        layers = LAYERS.get(pattern.kind)
        shared = SHARED.get(pattern.kind)
        self.world: World | RoundsWorld | OverlappedWorld | UnseenWorld
        if steps is not None:
            self.world = RoundsWorld(self.scene, drawn, steps)
        elif layers is not None:
            self.world = OverlappedWorld(self.scene, drawn, layers)
        elif shared is not None:
            self.world = UnseenWorld(self.scene, drawn, shared)
        else:
            self.world = World(self.scene, drawn)
        degrees = self.scene.job.parallelism
        self.layout = Parallelism(
            tensor=degrees.tensor, data=degrees.data, pipeline=degrees.pipeline, expert=degrees.expert
        )
        self.code = code_of(Facts(layout=self.layout, procs=self.scene.job.procs_per_node))
        self.agents: list[RankAgent] = []
        self.generation = 1
        self.since = 0.0
        self.names = [f"job-{replica}-0" for replica in range(self.scene.nodes)]
        self.prepared: dict[int, Pod] = {}
        self.spares = list(range(self.scene.nodes, self.scene.nodes + SPARES))
        self.made = self.records = self.crc = 0
        self.looks = self.tracked = 0
        self.incidents: dict[str, Incident] = {}
        self.open: Incident | None = None
        self.taken: list[Taken] = []

    def play(self) -> Outcome:
        """Play all iterations."""
        begun = time.process_time()
        self._begin()
        while self.made < self.scene.iterations:
            self._feed(self.world.asides(self.made))
            block, begins = self.world.block(self.made)
            self._play(block, begins)
        return Outcome(
            case=self.case,
            iterations=self.made,
            broken=self.scene.broken,
            incidents=list(self.incidents.values()),
            taken=self.taken,
            tracked=self.tracked / max(1, self.looks),
            records_crc=self.crc,
            records=self.records,
            seconds=time.process_time() - begun,
        )

    @property
    def now(self) -> float:
        return (START_UNIX_NS + self.world.now_ns) / 1e9

    def _begin(self) -> None:
        self.since = self.now
        self.agents = [RankAgent() for _ in range(self.scene.job.parallelism.world)]
        self._feed(self.world.begin())

    def _feed(self, by_rank: list[RecordArray]) -> None:
        for agent, records in zip(self.agents, by_rank, strict=False):
            self.records += len(records)
            agent.feed(records)
            if self.made < _CRC_ITERATIONS:
                self.crc = zlib.crc32(records.tobytes(), self.crc)

    def _play(self, block: Block | Steps, begins: Ints) -> None:
        """Play a block, or as much of it as there is before the nodes change."""
        start = self.world.now_ns
        ends = start + (block.seconds.cumsum() * 1e9).astype(int)
        for first in range(0, len(block), LOOK_ITERATIONS):
            last = min(first + LOOK_ITERATIONS, len(block))
            for writer, agent in zip(self.world.writers, self.agents, strict=True):
                writer.sample_every = 1 if agent.is_profiled else SAMPLE_EVERY
            self._feed([writer.records(block, begins, first, last) for writer in self.world.writers])
            self.made += last - first
            self.world.now_ns = int(ends[last - 1])
            if isinstance(self.world, UnseenWorld):
                stood = np.array(self.world.stood(self.made))
                for rank, agent in enumerate(self.agents):
                    agent.count(START_UNIX_NS + self.world.now_ns, self.world.unix_offset_ns(rank), stood[:, rank])
            if self._look():
                return

    def _look(self) -> bool:
        """Let the code look at the running job; True if a new generation begins."""
        sent = [agent.sent(rank, self.world.unix_offset_ns(rank)) for rank, agent in enumerate(self.agents)]
        if self.made > _SETTLED:
            self.looks += len(sent)
            self.tracked += sum(signals.tracking == "Tracking" for signals in sent)
        orders = self.code.look(self._seen(sent, running=True))
        self._note(self.code.said())
        for order in orders:
            if order.what == "Prepare":
                self._prepare(order.replica)
            elif order.what == "Abandon":
                self._abandon(order.replica)
        left = [order for order in orders if order.what in ("Switch", "Replace")]
        if left:
            self._switch(left)
        return bool(left)

    def _seen(self, sent: list[RankSignals], *, running: bool) -> Seen:
        return Seen(
            now=self.now,
            generation=self.generation,
            running=running,
            since=self.since,
            roles=list(self.world.roles),
            names=list(self.names),
            sent=sent,
            prepared=dict(self.prepared),
            spares=len(self.spares),
        )

    # -- nodes -------------------------------------------------------------------------------------------------------

    def _take(self, replica: int, what: str) -> None:
        node = self.world.roles[replica]
        slow = any(broken.node == node and broken.onset <= self.made for broken in self.scene.broken)
        self.taken.append(Taken(at=self.made, node=node, what=what, slow=slow))

    def _prepare(self, replica: int) -> None:
        self._take(replica, "Prepare")
        node = self.spares.pop(0) if self.spares else None
        name = f"job-{replica}-{self.generation}"
        self.prepared[replica] = Pod(name=name, node=node, asked_at=self.now, ready_at=self.now + POD_SECONDS)

    def _abandon(self, replica: int) -> None:
        pod = self.prepared.pop(replica, None)
        if pod is not None and pod.node is not None:
            self.spares.insert(0, pod.node)

    def _switch(self, orders: list[Order]) -> None:
        """Let a new generation begin with all these replicas on their new nodes; later orders are not carried out."""
        for order in orders:
            replica = order.replica
            self._take(replica, order.what)
            pod = self.prepared.pop(replica, None)
            node = pod.node if pod is not None else (self.spares.pop(0) if self.spares else None)
            if node is not None:
                self.world.roles[replica] = node
            self.names[replica] = pod.name if pod is not None else f"job-{replica}-{self.generation}"
        self.generation += 1
        self.since = self.now
        self.code.look(self._seen([], running=False))
        self.world.now_ns += round(STANDSTILL_SECONDS * 1e9)
        self._begin()

    # -- what is said ------------------------------------------------------------------------------------------------

    def _note(self, said: Said | None) -> None:
        """Keep what the open incident says for the first time."""
        if said is None or (self.open is not None and self.incidents.get(said.key) is not self.open):
            if self.open is not None:
                self.open.closed = self.made
            self.open = None
        if said is None:
            return
        if said.key not in self.incidents:
            self.incidents[said.key] = Incident(opened=self.made)
        incident = self.open = self.incidents[said.key]
        if said.is_incident and incident.incident_at is None:
            incident.incident_at = self.made
        if not said.met:
            self._note_components(incident, said)

    def _note_components(self, incident: Incident, said: Said) -> None:
        procs, roles = self.scene.job.procs_per_node, self.world.roles
        if said.rank is not None:
            if incident.rank is None:
                incident.rank, incident.cause, incident.slowdown = said.rank, said.cause, said.slowdown
            for rank in (said.rank, *said.also):
                incident.nodes.setdefault(roles[rank // procs], self.made)
        elif said.link_ranks:
            incident.cause = incident.cause or said.cause
            touched = {roles[rank // procs] for rank in self._members(said)}
            for node in touched if said.link_node is None else {said.link_node}:
                incident.links.setdefault(node, self.made)

    def _members(self, said: Said) -> list[int]:
        """Return all ranks of the communicator whose link is slow: an incident lists only the first of them."""
        if said.link_members <= len(said.link_ranks):
            return said.link_ranks
        groups = [group for axis in Axis for group in self.layout.group_table(axis).tolist()]
        groups.append(list(range(self.layout.world)))
        listed = set(said.link_ranks)
        fits = [group for group in groups if len(group) == said.link_members and listed <= set(group)]
        return fits[0] if fits else said.link_ranks
