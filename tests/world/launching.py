"""Pods of the small world: placed, started by their launchers, checked, broken, removed."""

from __future__ import annotations

from typing import Any

import msgspec

from falcon_core.topology.passes import ring_passes
from falcon_core.wire.launcher.launch import LaunchRank
from falcon_core.wire.measurement.check import CheckReport
from falcon_core.wire.measurement.check_links import LinkReport, LinksOrder, LinksReport
from falcon_core.wire.reporting.messages import Plan
from tests.world.state import PLACE_SECONDS, Node, Pod, WorldState

SAVE_SECONDS = 2.0  # from a launcher's SIGTERM to its own end
replace = msgspec.structs.replace


class Launching(WorldState):
    """A scheduler, kubelets and launchers."""

    def _place(self, pod: Pod) -> None:
        if pod.node or pod.gates or pod.deleting_at is not None or self.clock.seconds < pod.created + PLACE_SECONDS:
            return
        for node in self.nodes.values():
            if node.ready and not node.cordoned and self._fits(pod, node):
                pod.node, pod.placed_at = node.name, self.clock.seconds
                pod.stuck, pod.said = node.stuck is not None, node.stuck or pod.said
                return

    def admit(self) -> None:
        """Let the queue remove the gates of all pods; those that are made later have none."""
        self.gates = ()
        for pod in self.pods.values():
            pod.gates = ()

    def _fits(self, pod: Pod, node: Node) -> bool:
        spec = pod.manifest["spec"]
        if any(
            neighbour.node == node.name and neighbour.exit_code is None and neighbour is not pod
            for neighbour in self.pods.values()
        ):
            return False  # required anti-affinity
        tolerated = {toleration["key"] for toleration in spec.get("tolerations", [])}
        if set(node.taints) - tolerated:
            return False
        required = spec["affinity"].get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
        terms = required.get("nodeSelectorTerms", [{}])
        return any(all(_matches(node.name, field) for field in term.get("matchFields", [])) for term in terms)

    def _remove(self, pod: Pod) -> None:
        if pod.deleting_at is not None and not self._is_dead(pod) and self.clock.seconds >= pod.deleting_at + 0.5:
            del self.pods[pod.name]
            self.alive.discard(pod.uid)

    def _launch(self, pod: Pod) -> None:
        """Let the launcher bring its pod to the plan that its agent has read."""
        plan = self.plan
        self._end_early(pod)
        if pod.signalled_at is not None or plan is None or not self._is_served(pod):
            return
        member = next((plan_member for plan_member in plan.members if plan_member.pod_uid == pod.uid), None)
        phase = plan.phase if member is not None else "Stop"
        if plan.generation >= pod.generation:
            if phase == "Stop" and pod.dead_below < plan.generation:
                pod.generation, pod.dead_below, pod.ranks, pod.signals = plan.generation, plan.generation, {}, {}
                pod.state = "Stopped"
                pod.check = None
            elif phase == "Stop" and plan.check:
                self._check(pod, plan)
            elif phase == "Run" and pod.state not in ("Running", "Exited"):
                assert member is not None
                self._start(pod, plan, member.first_rank)
            elif phase == "Finish":
                pod.exit_code = plan.exit_code

    def _end_early(self, pod: Pod) -> None:
        """End a pod whose launcher got a signal, or that its node does not let begin."""
        if pod.exit_code is not None:
            return
        if pod.signalled_at is not None and self.clock.seconds >= pod.signalled_at + SAVE_SECONDS:
            pod.exit_code = 0 if pod.state == "Exited" else 128 + 15
        elif pod.node and self.clock.seconds >= pod.booted_at and not pod.ranks:
            ends = self.nodes[pod.node].ends_pods
            pod.exit_code, pod.said = ends if ends is not None else (None, pod.said)

    def _fail_at_start(self, pod: Pod) -> None:
        """End the ranks that miss something on their node, soon after their start."""
        node = self.nodes.get(pod.node)
        if node is None or not node.lacks or pod.state != "Running":
            return
        if self.clock.seconds < pod.run_at + node.lacks_after_seconds:
            return
        for rank, process in list(pod.ranks.items()):
            if process.state == "Running":
                self._end(pod, rank, exit_code=1)
                pod.ranks[rank] = replace(pod.ranks[rank], last_words=node.lacks)

    def _smoke(self, pod: Pod) -> None:
        """Let the launcher test its machine beside the start, once for each number."""
        number = self.plan.smoke if self.plan is not None and pod.generation == self.plan.generation else 0
        if not number or pod.node in self.mute or (pod.smoke is not None and pod.smoke.number == number):
            return
        node = self.nodes[pod.node]
        self.smoked.append((number, pod.node))
        problems = [node.wrong] if node.wrong else []
        pod.smoke = CheckReport(number, "", "falcon-launch", "1 × 2 CPUs", {"fp32": round(1e6 * node.rate)}, problems)

    def _start(self, pod: Pod, plan: Plan, first_rank: int) -> None:
        pod.generation, pod.dead_below, pod.state = plan.generation, plan.generation, "Running"
        pod.run_at = self.clock.seconds
        pod.ranks = {
            rank: LaunchRank(
                local_rank=rank - first_rank,
                rank=rank,
                pid=100 + rank,
                state="Running",
                started_unix_ns=int(self.clock.unix() * 1e9),
            )
            for rank in range(first_rank, first_rank + plan.procs_per_replica)
        }

    def _check(self, pod: Pod, plan: Plan) -> None:
        self._measure(pod, plan.check, plan.check_links)
        if plan.links is not None:
            self._link(pod, plan.links)

    def _measure(self, pod: Pod, number: int, links: bool) -> None:
        if pod.node in self.mute or (pod.check is not None and pod.check.number == number):
            return
        node = self.nodes[pod.node]
        rates = {"fp32": round(1e6 * node.rate), "copy": 5_000_000}
        self.measured.append((number, pod.node))
        port = LinksReport(40000 + len(self.measured)) if links else None
        problems = [node.wrong] if node.wrong else []
        pod.check = CheckReport(number, "", "torch", "1 × CPU", rates, problems, self.skipped, port)

    def _link(self, pod: Pod, order: LinksOrder) -> None:
        """Let a pod measure its links, once for each number, as it was ordered first."""
        report = pod.check
        if report is None or report.links is None or report.links.over or report.number != order.number:
            return
        assert self.tokens.setdefault(order.number, order.token) == order.token, "one token a round"
        if pod.node in self.unlinked:
            return
        self.linked.append((order.number, pod.node))
        nodes = {member.replica: member.node for member in self.plan.members} if self.plan is not None else {}
        own = next(replica for replica, node in nodes.items() if node == pod.node)
        peers = [peer for links in ring_passes([each[0] for each in order.ring]) for peer in _other(links, own)]
        done = [self._link_report(pod.node, nodes[peer], peer) for peer in peers]
        pod.check = replace(report, links=LinksReport(report.links.port, True, done))

    def _link_report(self, own: str, other: str, peer: int) -> LinkReport:
        ends = (self.nodes[own], self.nodes[other])
        if any(end.refuses for end in ends):
            return LinkReport(peer, why="10.0.0.9 port 40001: Connection refused")
        bits = self.cables.get(frozenset((own, other)), min(end.bits for end in ends))
        return LinkReport(peer, round(bits), 80, 100, 100, 950)

    def _end(self, pod: Pod, rank: int, *, signal: int | None = None, exit_code: int | None = None) -> None:
        pod.ranks[rank] = replace(
            pod.ranks[rank],
            state="Exited",
            signal=signal,
            exit_code=exit_code,
            ended_unix_ns=int(self.clock.unix() * 1e9),
        )
        if all(process.state == "Exited" for process in pod.ranks.values()):
            pod.state = "Exited"

    def _break(self) -> None:
        """Let the peers of a dead rank leave their collective with an exception."""
        if self.broken_at is None or self.clock.seconds < self.broken_at:
            return
        self.broken_at = None
        if self.living:
            return
        for pod in self.pods.values():
            if pod.state == "Running" and not self._is_dead(pod):
                for rank, process in list(pod.ranks.items()):
                    if process.state == "Running":
                        self._end(pod, rank, exit_code=1)


def _other(links: list[tuple[int, int]], own: int) -> list[int]:
    return [second if own == first else first for first, second in links if own in (first, second)]


def _matches(node: str, field: dict[str, Any]) -> bool:
    return bool((node in field["values"]) == (field["operator"] == "In"))
