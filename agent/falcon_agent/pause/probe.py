"""Carry out the operator's probes in this pod: pause its ranks at a cut while machine and links are measured.

The orders, and the rule that every gate opens by itself, are defined in ``wire.measurement.probe``. This module turns
orders into targets of the gates and an order for the executor. It turns what the rings, the launcher and the executor
say into the pod's answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import structlog

from falcon_agent.launch.plan import pod_links
from falcon_agent.launch.run_dir import RunDir
from falcon_agent.pause.cut import Start, State, now_begun, start_of, state_of, targets_of
from falcon_agent.pause.gates import Gates
from falcon_agent.rings.tracker import Followed, Tracker
from falcon_core.times import PAUSE_UNENDED_SECONDS
from falcon_core.wire.launcher.control import Target
from falcon_core.wire.launcher.launch import CONTROL_FILE, LaunchStatus
from falcon_core.wire.measurement.check import CheckReport, bounded
from falcon_core.wire.measurement.check_links import MAX_TEXT, LinksReport, read_links
from falcon_core.wire.measurement.probe import ProbeOrder, ProbeReport

LOOK_SECONDS: Final = 0.02  # while ranks are to stand still
STABLE_LOOKS: Final = 2  # in a row with all ranks still: a thread may be on its way from the gate to its counter
REPORTED_SECONDS: Final = 30.0  # for which the answer is reported after a probe's end
_PHASES: Final = ("Prepare", "Hold", "Release")
_log = structlog.get_logger()


class Probing:
    """The probes of one pod; times are monotonic seconds, on the clock of the gates."""

    def __init__(self, run_dir: RunDir, tracker: Tracker) -> None:
        self._run_dir, self._tracker = run_dir, tracker
        self._gates: Gates | None = None
        self._order: ProbeOrder | None = None
        self._report: ProbeReport | None = None
        self._begin()

    def _begin(self) -> None:
        """Forget the probe before."""
        self._starts: dict[int, Start] = {}
        self._replica = 0
        self._targets: dict[int, dict[int, int]] = {}  # by rank and counter; empty: no rank is to stand still
        self._armed_at = self._standing_since = self._measured_at = self._opened_at = 0.0
        self._stable = 0
        self._held = self._passed = False
        self._held_seconds = 0.0
        self._why = ""

    def take_over(self) -> None:
        """Open what an earlier agent of this pod may have left closed."""
        self._gates = Gates(self._run_dir.path / CONTROL_FILE)

    @property
    def wanted(self) -> int:
        """Return the number of the probe for which an executor is wanted next to the ranks; 0: none."""
        order = self._order
        return order.number if order is not None and order.phase != "Release" and not self._why else 0

    def take(self, order: ProbeOrder, replica: int, now: float) -> bool:
        """Take an order over. Return whether it is news.

        ``replica``: this pod's, in the plan that is in force.
        """
        known = self._order
        # Orders come by two ways and may repeat or arrive late: only a later one counts.
        if known is not None and (order.generation, order.number, _PHASES.index(order.phase)) <= (
            known.generation,
            known.number,
            _PHASES.index(known.phase),
        ):
            return False
        is_same = known is not None and (known.generation, known.number) == (order.generation, order.number)
        if not is_same:
            self._open(now)
            self._begin()
        self._order, self._replica = order, replica
        if order.phase == "Release":
            self._open(now)
        # The starts of iterations were found by an earlier life of this agent, and are lost.
        elif order.phase == "Hold" and not is_same:
            self._fail("its agent has restarted", now)
        elif order.phase == "Hold" and not self._why:
            self._stop(order, now)
        _log.info("probe", number=order.number, phase=order.phase)
        return True

    def _stop(self, order: ProbeOrder, now: float) -> None:
        """Let the ranks stop where the order says."""
        followed = self._tracker.followed(order.generation)
        targets: dict[int, dict[int, int]] = {}
        # One rank that cannot stop at the cut would hang all others, so the pod refuses the whole probe.
        for rank, start in self._starts.items():
            if start.counts is None or rank not in order.stops or rank not in followed:
                self._fail(f"it is not known where rank {rank} is to stand still", now)
                return
            targets[rank] = targets_of(start.counts, order.stops[rank], order.calls_before.get(rank, 0))
        if self._gates is None or not targets:
            self._fail("its ranks are not followed", now)
            return
        table = [
            Target(pid=followed[rank].reader.header.pid, key=key, calls=calls)
            for rank, own in targets.items()
            for key, calls in own.items()
        ]
        self._gates.aim(table, int((now + order.deadline_ms / 1e3) * 1e9), int(now * 1e9))
        self._targets, self._armed_at = targets, now

    def look(self, status: LaunchStatus | None, now: float, *, reads: bool) -> bool:
        """Go on with the probe; return whether there is something new to report.

        ``reads``: the rings have just been read.
        """
        order = self._order
        if order is None:
            return False
        if self._why or order.phase == "Release":
            pass
        elif (gone := _hindrance(order, status)) or not self._measures(status):
            self._fail(gone or self._links(status).why, now)
        # Counts are those of the rings: between two readings there is nothing new to find.
        elif order.phase == "Prepare" and reads:
            self._find_starts(order)
        elif self._targets:
            self._watch(order, status, now)
        before, self._report = self._report, self._answer(order, status)
        return self._report != before

    def _measures(self, status: LaunchStatus | None) -> bool:
        """Check that the executor lives, or has measured."""
        links = self._links(status)
        return not links.over or bool(links.links) or not links.why

    def _find_starts(self, order: ProbeOrder) -> None:
        """Find where the iterations of the ranks begin, once, and how many they have begun since."""
        for rank, followed in self._tracker.followed(order.generation).items():
            known = self._starts.get(rank)
            if known is None or known.counts is None:
                known = start_of(rank, followed)
            self._starts[rank] = now_begun(known, followed)

    def _watch(self, order: ProbeOrder, status: LaunchStatus | None, now: float) -> None:
        """Keep the gates closed, and note whether the ranks stand still and the executor has measured."""
        assert self._gates is not None
        # The shim opens the gates when no beat comes: ranks never stand still because this agent died.
        self._gates.beat(int(now * 1e9))
        followed, gates = self._tracker.followed(order.generation), self._gates
        states: dict[int, State] = {
            rank: _state(followed[rank], targets, gates) if rank in followed else "Lost"
            for rank, targets in self._targets.items()
        }
        self._count(states, now)
        why = _trouble(states) or self._late(order, states, now)
        if why:
            self._passed = "Passed" in states.values()
            self._fail(why, now)
        # All ranks have stood still for a few looks: the machine is quiet enough to be measured.
        elif not self._held and self._stable >= STABLE_LOOKS:
            self._held = True
            if order.links is not None:
                self._run_dir.ask_for_probe(pod_links(order.links, self._replica))
        elif self._held and self._links(status).over:
            self._measured_at = self._measured_at or now

    def _count(self, states: Mapping[int, State], now: float) -> None:
        """Note since when a rank stands still, and for how many looks all have."""
        stands = [state == "Standing" for state in states.values()]
        if any(stands) and not self._standing_since:
            self._standing_since = now
        self._stable = self._stable + 1 if all(stands) else 0

    def _late(self, order: ProbeOrder, states: Mapping[int, State], now: float) -> str:
        """Return what has taken too long; "" if nothing has."""
        since = now - self._armed_at
        if not self._held and since > order.arrive_ms / 1e3 and set(states.values()) != {"Standing"}:
            # One rank is named; the lowest, so that the text does not change from look to look.
            late = min(rank for rank, state in states.items() if state != "Standing")
            if states[late] == "Draining":
                return f"the device of rank {late} was not done with its calls in time"
            return f"rank {late} did not come to the cut in time"
        if self._measured_at and now - self._measured_at > PAUSE_UNENDED_SECONDS:
            return "the operator did not end the pause in time"
        return "its time is over" if since > order.deadline_ms / 1e3 else ""

    def _fail(self, why: str, now: float) -> None:
        self._why = why[:MAX_TEXT]
        self._open(now)
        _log.warning("probe given up", number=self._order.number if self._order is not None else 0, why=why)

    def _open(self, now: float) -> None:
        """Let the ranks go on."""
        if self._gates is not None and self._targets:
            self._gates.open()
            self._held_seconds = now - self._standing_since if self._standing_since else 0.0
        self._targets = {}
        self._opened_at = now

    def _links(self, status: LaunchStatus | None) -> LinksReport:
        """Return how far the executor has come."""
        order = self._order
        check = status.links if status is not None else None
        if order is None or check is None or check.number != order.number:
            return LinksReport(port=-1)  # it is about to be started
        return read_links(order.number, self._run_dir.probe(), running=check.running, error=check.error)

    def _machine(self, order: ProbeOrder) -> CheckReport | None:
        """Return how fast this machine computes, once the executor has reported it."""
        printed = self._run_dir.probe()
        if printed is None or printed.number != order.number or printed.machine is None:
            return None
        return bounded(order.number, printed.machine)

    def _answer(self, order: ProbeOrder, status: LaunchStatus | None) -> ProbeReport:
        return ProbeReport(
            order.number,
            links=self._links(status),
            ranks=[start.report for start in self._starts.values()] if order.phase == "Prepare" else [],
            held=self._held,
            is_open=not self._targets,
            held_ms=round(1e3 * self._held_seconds),
            passed=self._passed,
            why=self._why,
            machine=self._machine(order),
        )

    def report(self, now: float) -> ProbeReport | None:
        """Return the answer to the newest order, until ``REPORTED_SECONDS`` after its end."""
        order = self._order
        is_over = order is None or (
            (self._why or order.phase == "Release") and now - self._opened_at > REPORTED_SECONDS
        )
        return None if is_over else self._report

    def seconds_to_next(self) -> float:
        """Return the seconds until the next look; infinite if no rank is to stand still."""
        return LOOK_SECONDS if self._targets else float("inf")


def _state(followed: Followed, targets: Mapping[int, int], gates: Gates) -> State:
    return state_of(followed.reader, targets, gates.number, gates.table, enqueues=followed.enqueues)


def _trouble(states: Mapping[int, State]) -> str:
    """Return which rank ends the pause, and why; "" if none does."""
    words = {"Passed": "was past the cut", "Opened": "has given the pause up", "Lost": "is followed no more"}
    return next((f"rank {rank} {words[state]}" for rank, state in states.items() if state in words), "")


def _hindrance(order: ProbeOrder, status: LaunchStatus | None) -> str:
    """Return why ranks must not stand still for an order, whatever else is going on; "" if they may."""
    if status is None or status.generation != order.generation or status.state != "Running":
        return "its generation does not run"
    ended = next((rank.rank for rank in status.ranks if rank.state != "Running"), None)
    return "" if ended is None else f"rank {ended} has ended"
