"""What a burn-in says of a node: its pod is read, and its score is compared with the scores of its peers. Pure."""

from __future__ import annotations

from falcon_core.wire.burn_in import BurnInReport, decode_report
from falcon_operator.intent.snapshot import BurnInResult
from falcon_operator.manifests.burn_in import BURN_IN_CONTAINER
from falcon_operator.ports import ContainerView, PodView

SLOWER = 1.5  # times slower than the median of its peers: the median rule's factor


def ratio(gflops: float, peers_gflops: float) -> float:
    """How many times slower the node is than its peers."""
    return peers_gflops / gflops


def is_slow(gflops: float, peers_gflops: float) -> bool:
    """Whether a node with this score is too slow beside the median of its peers."""
    return ratio(gflops, peers_gflops) > SLOWER


def weigh(pod: PodView, peers_gflops: float | None) -> BurnInResult:
    """Where the test in ``pod`` stands; ``peers_gflops`` is the median of the node's peers, None where it has none."""
    container = pod.containers.get(BURN_IN_CONTAINER)
    if container is not None and container.exit_code is not None:
        return _weigh_end(container, container.exit_code, peers_gflops)
    if pod.phase in ("Succeeded", "Failed") or pod.deleting:
        why = ", ".join(part for part in (pod.reason, pod.message, pod.disruption) if part) or "it was deleted"
        return BurnInResult(outcome="Failed", message=f"the test's pod ended without a result: {why}")
    return BurnInResult(outcome="Running", message=_waiting_for(pod))


def _weigh_end(container: ContainerView, exit_code: int, peers_gflops: float | None) -> BurnInResult:
    try:
        report = decode_report(container.exit_message)
    except ValueError as error:
        if exit_code == 0:
            return BurnInResult(outcome="Failed", message=f"the test's result cannot be read: {error}")
        said = container.exit_message.strip()[-300:] or container.exit_reason or "it said nothing"
        return BurnInResult(outcome="Failed", message=f"the test ended with exit code {exit_code}: {said}")
    if report.disk_error:
        return BurnInResult(outcome="Failed", message=f"disk: {report.disk_error}")
    if exit_code != 0 or report.gflops <= 0:
        said = f"the test measured {report.gflops} GFLOP/s and ended with exit code {exit_code}"
        return BurnInResult(outcome="Failed", message=said)
    return _compare(report, peers_gflops)


def _compare(report: BurnInReport, peers_gflops: float | None) -> BurnInResult:
    if peers_gflops is None:
        return BurnInResult(outcome="Passed", gflops=report.gflops)
    slow = is_slow(report.gflops, peers_gflops)
    return BurnInResult(
        outcome="Slow" if slow else "Passed", gflops=report.gflops, ratio=ratio(report.gflops, peers_gflops)
    )


def _waiting_for(pod: PodView) -> str:
    if pod.unschedulable:
        return pod.unschedulable
    for container in pod.containers.values():
        if container.waiting_reason not in ("", "PodInitializing", "ContainerCreating"):
            return f"container {container.name}: {container.waiting_reason} {container.waiting_message}".strip()
    return "the test runs" if pod.phase == "Running" else "the test's pod starts"
