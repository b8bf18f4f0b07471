"""Ranks that stand still to be measured, in the world of the stories: what the agents make of the newest order."""

from __future__ import annotations

from collections.abc import Mapping

from falcon_core.topology.passes import ring_passes
from falcon_core.wire.measurement.check import CheckReport
from falcon_core.wire.measurement.check_links import LinkReport, LinksReport
from falcon_core.wire.measurement.probe import ChannelStart, ProbeOrder, ProbeReport, RankStart
from falcon_core.wire.ring import Traffic

MEASURING_SECONDS = 0.5


class Paused:
    """All pods' part in the probe that was ordered last. One rank in each pod, of its replica's number."""

    def __init__(self) -> None:
        self.orders: list[ProbeOrder] = []
        self.mute: set[int] = set()  # replicas that answer nothing
        self.why = ""  # why ranks cannot be stopped
        self.on_device = False  # ranks' calls return when they are enqueued
        self.past = False  # the order comes too late
        self.fast = 5e9  # bits a second
        self.slow: dict[frozenset[int], float] = {}  # likewise, of links between replicas
        self.rates: dict[int, float] = {}  # of computing, by replica; 1: as fast as its peers
        self.unmeasured: set[int] = set()  # replicas whose machine cannot be measured
        self.pauses: list[float] = []  # seconds for which ranks stood still
        self._begun_at: float | None = None  # when they stopped

    def stops(self, iterations: int, now: float) -> bool:
        """Check whether training stands still now."""
        order = self.orders[-1] if self.orders else None
        holds = order is not None and order.phase == "Hold" and not (self.why or self.past)
        holds = holds and order is not None and iterations >= min(order.stops.values())
        if holds and self._begun_at is None:
            self._begun_at = now
        elif not holds and self._begun_at is not None:
            self.pauses.append(now - self._begun_at)
            self._begun_at = None
        return holds

    def report(self, replica: int, world_size: int, iterations: int, now: float) -> ProbeReport | None:
        """Return a pod's answer."""
        order = self.orders[-1] if self.orders else None
        if order is None or replica in self.mute:
            return None
        waiting = LinksReport(41000 + replica)
        if order.phase == "Prepare":
            channel = ChannelStart(1, world_size, replica, Traffic.COLLECTIVE, 0, 7, 2)
            start = RankStart(replica, [] if self.why else [channel], iterations, self.why, self.on_device)
            return ProbeReport(order.number, waiting, [start], is_open=True)
        if order.phase == "Release":
            held = round(1e3 * self.pauses[-1]) if self.pauses else 0
            return ProbeReport(order.number, waiting, is_open=True, held_ms=held)
        if self.past:
            return ProbeReport(order.number, waiting, is_open=True, passed=True, why=f"rank {replica} was past the cut")
        if self._begun_at is None:
            return ProbeReport(order.number, waiting)
        if now - self._begun_at < MEASURING_SECONDS:
            return ProbeReport(order.number, waiting, held=True)
        links = LinksReport(41000 + replica, True, self._links(order, replica))
        return ProbeReport(order.number, links, held=True, machine=self._machine(order, replica))

    def _machine(self, order: ProbeOrder, own: int) -> CheckReport | None:
        assert order.links is not None
        if not order.links.machine_milliseconds:
            return None
        if own in self.unmeasured:
            return CheckReport(order.number, why="the benchmark measured nothing")
        micros = round(1e6 * self.rates.get(own, 1.0))
        return CheckReport(order.number, backend="numpy", devices="1 × CPU", micros={"fp32": micros})

    def _links(self, order: ProbeOrder, own: int) -> list[LinkReport]:
        assert order.links is not None
        pairs = [pair for links in ring_passes([seat[0] for seat in order.links.ring]) for pair in links]
        peers = [sum(pair) - own for pair in pairs if own in pair]
        return [LinkReport(peer, round(self._bits({own, peer})), 80, 100, 100, 950) for peer in peers]

    def _bits(self, ends: set[int]) -> float:
        return self.slow.get(frozenset(ends), self.fast)


def replica_of(ranks: Mapping[int, object]) -> int:
    return min(ranks, default=-1)
