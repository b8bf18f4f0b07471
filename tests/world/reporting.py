"""Agents of the small world: what they report of their pods."""

from __future__ import annotations

import msgspec

from falcon_core.wire.launcher.launch import LaunchStandby, LaunchStatus
from falcon_core.wire.measurement.probe import ProbeReport
from falcon_core.wire.reporting.messages import CommSignals, RankSignals, Summary, ThrottleSignals
from falcon_core.wire.reporting.microbatches import MicroShare
from falcon_operator.base.ports import Received
from tests.world.probe import replica_of
from tests.world.state import TTL_SECONDS, Node, Pod
from tests.world.training import Training

replace = msgspec.structs.replace


class Reporting(Training):
    """Agents and their gateways."""

    def _report(self, pod: Pod) -> None:
        if self.bus_up_since is None:
            return
        if not self._agent_lives(pod):
            if pod.uid in self.alive:
                pod.dead_seen_at = pod.dead_seen_at or self.clock.seconds
                if self.clock.seconds >= pod.dead_seen_at + TTL_SECONDS:
                    self.alive.discard(pod.uid)
                    self.gone_since[pod.uid] = self.clock.monotonic()
            return
        if not self._is_served(pod):
            return
        pod.dead_seen_at = None
        self.alive.add(pod.uid)
        self.gone_since.pop(pod.uid, None)
        pod.sequence += 1
        node = self.nodes[pod.node]
        running = self.plan is not None and pod.generation == self.plan.generation
        summary = Summary(
            pod_uid=pod.uid,
            sequence=pod.sequence,
            unix_ns=int(self.clock.unix() * 1e9),
            generation=pod.generation,
            launch=LaunchStatus(
                generation=pod.generation,
                dead_below=pod.dead_below,
                state=pod.state,
                standby=self._standby(pod),
                ranks=list(pod.ranks.values()),
            ),
            ranks=[self._signals(rank, node) for rank in pod.ranks if rank not in self.unseen] if running else [],
            throttle=ThrottleSignals(
                window_seconds=1.0, throttled_fraction=node.throttled, healthy_throttled_fraction=0.0
            ),
            checkpoints=self.held,
            loaded=self.loaded,
            copies=self.copies,
            directory=self.directory,
            check=pod.check if pod.state in ("Idle", "Stopped") else None,
            smoke=pod.smoke,
            imported=b"imports" if self.plan is not None and self.plan.imports_of == pod.uid else b"",
            probe=self._probed(pod) if running else None,
            groups=self.groups.get(replica_of(pod.ranks)) if running else None,
            anomalies=node.odd(self.clock.seconds) if running else [],
            results=node.results if running else [],
        )
        now = self.clock.monotonic()
        report = self.voices.report(summary, now, forgotten=pod.uid not in self.received)
        if report is not None:
            self.received[pod.uid] = Received(summary=report, at_seconds=now, gateway_unix=self.clock.unix())

    def _standby(self, pod: Pod) -> LaunchStandby | None:
        """Return what waits in the pod; in a pod without a replica nothing waits before it knows what to import."""
        waits = self.plan is not None and pod.uid in self.plan.standby_pods
        return None if waits and self.imports is None else self.standby

    def _probed(self, pod: Pod) -> ProbeReport | None:
        replica = replica_of(pod.ranks)
        return self.paused.report(replica, len(self._nodes()), self.iterations, self.clock.seconds)

    def _signals(self, rank: int, node: Node) -> RankSignals:
        values = self.history.get(rank, [])
        known = len(values) >= 3  # the period has been found
        newest = values[-16:] if known else []
        learned = values[:10] if len(values) >= 10 else []
        return RankSignals(
            rank=rank,
            tracking="Tracking" if known else "Undetermined",
            iterations=len(values) if known else 0,
            iteration_ns=[iteration for iteration, _, _ in newest],
            compute_ns=[compute for _, compute, _ in newest],
            wait_ns=[wait for _, _, wait in newest],
            healthy_iteration_ns=sorted(iteration for iteration, _, _ in learned)[5] if learned else None,
            healthy_compute_ns=sorted(compute for _, compute, _ in learned)[5] if learned else None,
            onset=self.onset,
            last_call_unix_ns=int(self.moved_unix * 1e9),
            hang_deadline_ns=int(5e9),
            cpu_fraction=0.0 if self.hanging else 0.8,
            run_delay_fraction=0.01,
            healthy_run_delay_fraction=0.01,
            comms=self._comms(rank, len(values)),
            sends=self.flows.sends(rank) if self.onset is not None else [],
            work=self.work,
            retries=self.retries.get(rank, 0),
            sight=self.sights.get(rank, "Full"),
            micro=self._said(rank, node) if known and self.per_rank else None,
        )

    def _said(self, rank: int, node: Node) -> MicroShare:
        share = self.shares[rank] if self.shares else self.per_rank
        micro_ns = None if self.hindrance else int(self._micro(node.name) * 1e9)
        return MicroShare(per_rank=self.per_rank, share=share, micro_ns=micro_ns, hindrance=self.hindrance)

    def _comms(self, rank: int, done: int) -> list[CommSignals]:
        if self.hanging:
            return [self._comm(rank, done)]
        return self.flows.comms(rank, self._nodes()) if self.onset is not None else []

    def _comm(self, rank: int, done: int) -> CommSignals:
        """Return the state of a hang: all ranks but the first have entered one call more than is finished."""
        size = len(self.history)
        return CommSignals(comm=1, size=size, place=rank, entered=done + (rank > 0), finished=done, op=1)
