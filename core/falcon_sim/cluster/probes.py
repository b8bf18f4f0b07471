"""Simulate the answers of pods to a probe: executors start, ranks stand still, links are measured.

Core decides when that happens and what it shows (``recovery.probe.probe_controller``). A test measures the time of a
transfer or a product at that moment, with noise, and has no other access to the truth.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from falcon_core.recovery import Observation, Probe, ProbeSeen
from falcon_core.topology.passes import ring_passes
from falcon_core.wire.measurement.check import CheckReport
from falcon_core.wire.measurement.check_links import LinkReport, LinksReport
from falcon_core.wire.measurement.probe import ChannelStart, ProbeReport, RankStart
from falcon_core.wire.ring import Traffic
from falcon_sim.cluster.machines import Machines, probe
from falcon_sim.job.model import Conditions
from falcon_sim.job.records import WORLD

START_SECONDS: Final = 2.0  # until the executors wait, while training goes on
MACHINE_SECONDS: Final = 0.8  # measured on the local cluster: half a second of products, and the launcher's part
TURN_SECONDS: Final = 0.6  # likewise: a transfer in each direction
_BITS: Final = 1e10  # a second, of a healthy link
_MICROS: Final = 1_000_000  # a healthy machine's rate
_HELD_PERMILLE: Final = 950  # of a transfer: the network holds it up, no CPU is busy


class Pods:
    """The pods of a run, as far as probes are concerned."""

    def __init__(self, machines: Machines, rng: np.random.Generator) -> None:
        self._machines, self._rng = machines, rng
        self._measured: dict[int, ProbeReport] = {}  # by replica, of the newest probe
        self._number = 0  # of the probe that has been measured
        self._held_ms = 0

    def stand_still(self, held: Probe | None, obs: Observation, conditions: Conditions) -> float:
        """Measure as a probe orders whose ranks are to stand still; return the standstill [s], 0 for no order.

        Each probe is measured once.
        """
        if held is None or held.phase != "Hold" or held.number == self._number:
            return 0.0
        links: dict[int, list[LinkReport]] = {member.replica: [] for member in obs.members}
        # In a turn each pod measures one link, as the real executors do.
        turns = ring_passes([seat.replica for seat in held.ring]) if held.ring else []
        for first, second in (pair for turn in turns for pair in turn):
            bits = round(_BITS / probe(conditions.links, first, second, self._rng))
            for own, peer in ((first, second), (second, first)):
                links[own].append(
                    LinkReport(
                        peer=peer,
                        bits=bits,
                        rtt_us=100,
                        receiving_permille=100,
                        sending_permille=100,
                        held_permille=_HELD_PERMILLE,
                    )
                )
        tests = held.measures != "Links"
        seconds = len(turns) * TURN_SECONDS + tests * MACHINE_SECONDS
        self._number, self._held_ms = held.number, round(seconds * 1e3)
        self._measured = {
            member.replica: ProbeReport(
                number=held.number,
                links=LinksReport(port=1, over=True, links=links[member.replica]),
                held=True,
                machine=self._tested(held.number, member.node, obs.now) if tests else None,
            )
            for member in obs.members
        }
        return seconds

    def _tested(self, number: int, node: str, now: float) -> CheckReport:
        slowdown = self._machines.slowdown(int(node.removeprefix("node-")), now)
        rate = _MICROS / slowdown * math.exp(0.02 * self._rng.standard_normal())
        return CheckReport(number, backend="simulated", devices="alike", micros={"products": round(rate)})

    def answers(self, ordered: Probe | None, obs: Observation) -> dict[int, ProbeSeen]:
        """Return the pods' answers to the probe in progress, by replica."""
        if ordered is None or (ordered.phase == "Prepare" and obs.now - ordered.since < START_SECONDS):
            return {}
        if ordered.phase == "Prepare":
            reports = self._ready(ordered.number, obs)
        elif ordered.phase == "Hold":
            reports = self._measured
        else:
            reports = {
                member.replica: ProbeReport(number=ordered.number, is_open=True, held_ms=self._held_ms)
                for member in obs.members
            }
        return {replica: ProbeSeen(report=report, address=f"pod-{replica}") for replica, report in reports.items()}

    def _ready(self, number: int, obs: Observation) -> dict[int, ProbeReport]:
        """Let the executors wait, and each rank report the start of its iterations: at its calls of all ranks."""
        starts: dict[int, list[RankStart]] = {member.replica: [] for member in obs.members}
        for rank in obs.ranks:
            channel = ChannelStart(
                comm=WORLD,
                size=len(obs.ranks),
                place=rank.rank,
                traffic=Traffic.COLLECTIVE,
                peer=-1,
                start=obs.iterations,
                calls=1,
            )
            starts[rank.replica].append(RankStart(rank=rank.rank, channels=[channel]))
        return {
            replica: ProbeReport(number=number, links=LinksReport(port=1), ranks=ranks)
            for replica, ranks in starts.items()
        }
