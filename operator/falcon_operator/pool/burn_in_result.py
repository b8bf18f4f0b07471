"""Read the results of burn-in pods, and compare a node's scores with those of its peers.

A test is slower than its peers for three reasons: the node is slow, others used its CPUs during the test, or something
slowed all machines then. In the last two cases it says nothing about the node (``Disturbed``). A node is called slow
only after ``SLOW_TESTS`` slow tests, since a fence takes the node from everybody.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from falcon_core.judgement import JUDGEMENT
from falcon_core.wire.measurement.burn_in import BurnInReport, decode_bench, decode_report
from falcon_operator.base.ports import ContainerView, PodView
from falcon_operator.intent.model.snapshot import BurnInResult
from falcon_operator.manifests.burn_in import BENCH_CONTAINER, BURN_IN_CONTAINER
from falcon_operator.pool.history import Reference

SLOW_TESTS = 2  # slow tests before a node is called slow
MOST_TESTS = 4  # tests of a node in a row while other processes disturb them
MOST_STOLEN = 0.9  # the share that a score may be corrected for: what little was left then measures nothing
APART_SECONDS = 20.0  # from a slow or disturbed test to the next
replace = msgspec.structs.replace


def ratio(gflops: float, peers_gflops: float) -> float:
    """Return how many times slower the node is than its peers."""
    return peers_gflops / gflops


def is_slow(gflops: float, peers_gflops: float) -> bool:
    """Check whether a node with this score is too slow, compared with the median of its peers."""
    return ratio(gflops, peers_gflops) > JUDGEMENT.median_factor


def is_settled(results: Sequence[BurnInResult]) -> bool:
    """Check whether the last test of a node is its outcome, so that no other test follows.

    Args:
        results: the node's tests, in the order in which they ran.
    """
    last = results[-1].outcome
    if last == "Slow":
        return sum(result.outcome == "Slow" for result in results) >= SLOW_TESTS
    return last != "Disturbed" or len(results) >= MOST_TESTS


def weigh(pod: PodView, reference: Reference, tenants: Sequence[str], accusers: Sequence[str] = ()) -> BurnInResult:
    """Return what the test in ``pod`` says about its node.

    Args:
        reference: what its scores are compared with.
        tenants: names of other workloads' pods on the node.
        accusers: names of pods on the node, of the namespace that calls the node slow. While they run, no slow test
            counts: they could slow it by means that no counter shows (the caches, the other half of a core).
    """
    container, bench = pod.containers.get(BURN_IN_CONTAINER), pod.containers.get(BENCH_CONTAINER)
    if container is not None and container.exit_code is not None:
        result = _weigh_end(container, container.exit_code, reference, (tenants, accusers))
        # A test that failed needs no second opinion of the pool's image.
        if bench is None or result.outcome == "Failed":
            return result
        if bench.exit_code is not None:
            return _with_bench(result, bench, reference, accusers)
    if pod.phase in ("Succeeded", "Failed") or pod.deleting:
        why = ", ".join(part for part in (pod.reason, pod.message, pod.disruption) if part) or "it was deleted"
        return BurnInResult(outcome="Failed", message=f"the test's pod ended without a result: {why}")
    return BurnInResult(outcome="Running", message=_waiting_for(pod))


def _weigh_end(
    container: ContainerView, exit_code: int, reference: Reference, others: tuple[Sequence[str], Sequence[str]]
) -> BurnInResult:
    try:
        # The report counts more than the exit code: it says what is wrong.
        report = decode_report(container.exit_message)
    except ValueError as error:
        if exit_code == 0:
            return BurnInResult(outcome="Failed", message=f"the test's result cannot be read: {error}")
        said = container.exit_message.strip()[-300:] or container.exit_reason or "no message"
        return BurnInResult(outcome="Failed", message=f"the test ended with exit code {exit_code}: {said}")
    if report.disk_error:
        return BurnInResult(outcome="Failed", message=f"disk: {report.disk_error}")
    if exit_code != 0 or report.gflops <= 0:
        said = f"the test measured {report.gflops} GFLOP/s and ended with exit code {exit_code}"
        return BurnInResult(outcome="Failed", message=said)
    # Without peers there is nothing to compare with: a test that ends well then passes.
    score = _score(report)
    if reference.gflops is None:
        return BurnInResult(outcome="Passed", gflops=score)
    return _compare(report, score, reference, *others)


def _with_bench(
    result: BurnInResult, bench: ContainerView, reference: Reference, accusers: Sequence[str]
) -> BurnInResult:
    """Add what the executor has found in the pool's image to the result of the agent's own test.

    The slowest of its rates decides. Other workloads share no device with it.
    """
    if bench.exit_code:
        said = bench.exit_message.strip()[-300:] or bench.exit_reason or "no message"
        return BurnInResult(
            outcome="Failed", message=f"the pool's image ended with exit code {bench.exit_code}: {said}"
        )
    try:
        scores = decode_bench(bench.exit_message).scores
    except ValueError as error:
        return BurnInResult(outcome="Failed", message=f"the result of the pool's image cannot be read: {error}")
    result = replace(result, scores=scores)
    # Only kinds of work that the peers have measured as well can be compared.
    slower, name = max(
        ((ratio(rate, reference.scores[name]), name) for name, rate in scores.items() if name in reference.scores),
        default=(0.0, ""),
    )
    # A node that did not pass the agent's own test keeps that outcome: the fault that it names is more basic.
    if result.outcome != "Passed" or slower <= JUDGEMENT.median_factor:
        return result
    message = f"its {name} is {slower:.1f}x slower than the median of its peers ({reference.scores[name]:.4g})"
    if accusers:
        message += f", but pods of the namespace that calls it slow run on it: {listed(accusers)}"
    return replace(result, outcome="Disturbed" if accusers else "Slow", ratio=slower, message=message)


def beside_controls(reference: Reference, controls: Sequence[BurnInResult]) -> Reference:
    """Return what a test is compared with, given the same test of spares at the same time (``controls``).

    Compared with the node's own past, a wait for CPUs excuses a test: something outside the node may have taken them.
    Where a control has a score, that shows whether others waited as well (``among_controls``), and the wait alone
    excuses nothing.
    """
    return replace(reference, own=reference.own and not _measured(controls))


def among_controls(result: BurnInResult, controls: Sequence[BurnInResult]) -> BurnInResult:
    """Return what a slow test says about its node, given the same test of spares at the same time (``controls``).

    If it is not slower than theirs, it says nothing: the spares may have become slow as well, or all machines were.
    """
    measured = _measured(controls)
    if result.outcome != "Slow" or not result.gflops or not measured:
        return result
    slower = [ratio(result.gflops, max(control.gflops or 0.0 for control in measured))]
    slower += [
        ratio(rate, max(control.scores[name] for control in measured if name in control.scores))
        for name, rate in result.scores.items()
        if any(name in control.scores for control in measured)
    ]
    if max(slower) > JUDGEMENT.median_factor:
        return result
    found = f"{result.message}, but spares were as slow at the same time ({max(slower):.1f}x)"
    return replace(result, outcome="Disturbed", message=found)


def _measured(controls: Sequence[BurnInResult]) -> list[BurnInResult]:
    return [control for control in controls if control.outcome == "Passed" and control.gflops]


def _score(report: BurnInReport) -> float:
    """Return GFLOP/s of the time that the hypervisor left to the machine: what it took is never the node's fault.

    A spare is tested once and then compared with for days. Its score must not depend on who else used the hypervisor's
    CPUs in those seconds.
    """
    stolen = min(report.stolen or 0.0, MOST_STOLEN)
    return report.gflops / (1.0 - stolen)


def _compare(
    report: BurnInReport, score: float, reference: Reference, tenants: Sequence[str], accusers: Sequence[str]
) -> BurnInResult:
    assert reference.gflops is not None  # the caller has looked
    slower = ratio(score, reference.gflops)
    if not is_slow(score, reference.gflops):
        return BurnInResult(outcome="Passed", gflops=score, ratio=slower)
    message = f"its test is {slower:.1f}x slower than {reference.whose} ({reference.gflops:.1f} GFLOP/s)"
    if accusers:
        message += f", but pods of the namespace that calls it slow run on it: {listed(accusers)}"
        return BurnInResult(outcome="Disturbed", gflops=score, ratio=slower, message=message)
    # Correct the score by the CPU time that others took. If the node is as fast as its peers then, the others were
    # why.
    left = _share_left(report, shared=bool(tenants), own=reference.own)
    if left == 0 or not is_slow(score / left, reference.gflops):
        message += f", but others used its CPUs meanwhile: {_disturbance(report, tenants)}"
        return BurnInResult(outcome="Disturbed", gflops=score, ratio=slower, message=message)
    return BurnInResult(outcome="Slow", gflops=score, ratio=slower, message=message)


def _share_left(report: BurnInReport, *, shared: bool, own: bool) -> float:
    """Return the share of the requested CPU time that other workloads left to the test.

    A wait for a CPU is the fault of other workloads only where there are tenants. On a node without tenants, the node
    itself gives less than its peers do (a quota, a daemon that uses too much CPU). Compared with itself (``own``) a
    wait may also come from whatever shares the machine now and did not then. 0: the test shared the node, and how long
    it waited is unknown.
    """
    if not shared and not own:
        return 1.0
    # The kernel counts no waits here: on a shared node they may explain any score.
    if report.run_delay is None:
        return 0.0 if shared else 1.0
    return max(0.0, 1.0 - max(0.0, report.run_delay - (report.throttled or 0.0)))


def _disturbance(report: BurnInReport, tenants: Sequence[str]) -> str:
    shares = (
        ("waited for a CPU", report.run_delay),
        ("stolen by the hypervisor", report.stolen),
        ("CPU pressure", report.cpu_pressure),
    )
    parts = [f"{name} {'unknown' if share is None else f'{share:.0%}'}" for name, share in shares]
    return ", ".join([*(f"{listed(tenants)} on the node" for _ in tenants[:1]), *parts])


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _waiting_for(pod: PodView) -> str:
    if pod.unschedulable:
        return pod.unschedulable
    for container in pod.containers.values():
        if container.waiting_reason not in ("", "PodInitializing", "ContainerCreating"):
            return f"container {container.name}: {container.waiting_reason} {container.waiting_message}".strip()
    return "the test runs" if pod.phase == "Running" else "the test's pod starts"
