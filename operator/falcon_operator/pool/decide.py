"""Decide which nodes a warm pool keeps free, tested and ready.

A spare's life::

    (chosen) → Testing → Ready → Claimed → (job gone or done with it) → Testing → …
                  └────→ Failed ──(a while, or another spec)──┘
    any but Claimed → Unavailable while its node cannot take a pod, or others use it → Testing

A test that is slower than the spare's peers is repeated first (``pool.burn_in_result``).

The status is written before any effect is carried out, and every effect derives from the status. So an effect that is
carried out twice changes nothing the second time. The jobs' side makes the claims (``pool.claims``) under the pool's
resourceVersion: two jobs cannot get the same spare, and a job that asks twice gets the same spare. The pool itself
takes a claim back only when its job is gone or over. The pool also tests the nodes that such jobs left fenced
(``pool.fences``).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import msgspec

from falcon_operator.api.common import TAINT_SPARE
from falcon_operator.api.warmpool import NodeChecks, SpareStatus, WarmPool
from falcon_operator.base import spare_annotations
from falcon_operator.base.effects import DeletePod, Effect, TaintNode, UntaintNode
from falcon_operator.base.ports import NodeView, Occupant, PodView
from falcon_operator.base.time_format import timestamp, unix_seconds
from falcon_operator.manifests.burn_in import (
    LABEL_PURPOSE,
    PULL,
    PURPOSE_CONTROL,
    PURPOSE_EXCLUDED,
    PURPOSE_SPARE,
    START_SECONDS,
    burn_in_name,
    longest_seconds,
)
from falcon_operator.pool import fences
from falcon_operator.pool.burn_in_result import APART_SECONDS, SLOW_TESTS, is_slow, listed, ratio, weigh
from falcon_operator.pool.claims import begin_test
from falcon_operator.pool.history import Reference, gflops, recorded, reference
from falcon_operator.pool.nodes import candidates, is_selected, left_out, obstacle, tenants, trainers, unlike
from falcon_operator.pool.snapshot import PoolDecision, PoolSnapshot
from falcon_operator.pool.summary import summed_up

# After a failed test. A pool tests at a fixed distance: only the pool waits for the node. A job that has left a node
# doubles the distance each time (falcon_core.recovery.history.left_nodes), since each test also keeps the node from
# others.
FAILED_SPARE_RETEST_SECONDS = 600.0
DISTURBED_APART_SECONDS = 60.0  # from a test that others disturbed to the next; it costs an idle node its test alone
UNREAD_SECONDS = 300.0  # after its latest end an excluded node's test counts as left behind: its job reads it at once
LOOK_SECONDS = 1.0  # while a test runs: its pod's end may not be seen by a watch
MIN_PEERS = 2
replace = msgspec.structs.replace


def decide_pool(snap: PoolSnapshot) -> PoolDecision:
    """Decide what one look at the pool leads to."""
    tests = {pod.name: pod for pod in snap.burn_ins if pod.labels.get(LABEL_PURPOSE) == PURPOSE_SPARE}
    spares = [moved for spare in snap.pool.status.spares if (moved := _step(snap, spare, tests)) is not None]
    # After all have moved: a verdict compares a spare with the newest scores of the others.
    spares = [_again_beside_peers(snap, spare, spares) for spare in spares]
    # Last, since a spare that has just failed or left makes room for another node.
    spares = _resized(snap, spares)
    # Tests end without an event of the pool's, so the next look is timed by them.
    waits = [max(LOOK_SECONDS, _wait_seconds(spare, snap.now)) for spare in spares if spare.state == "Testing"]
    if fences.running(snap):
        waits.append(LOOK_SECONDS)
    status = replace(snap.pool.status, checks=_history(snap, tests))
    return PoolDecision(
        status=summed_up(
            replace(snap.pool, status=status),
            spares,
            snap.now,
            in_use=_in_use(snap, spares),
            left_out=left_out(snap.pool, snap.nodes.values(), {spare.node for spare in spares}),
            troubled=_left_for_trouble(snap, spares),
        ),
        effects=[*_effects(snap, spares, tests), *fences.effects(snap)],
        again_seconds=min(waits, default=None),
    )


def abandoned(name: str, nodes: Iterable[NodeView]) -> list[Effect]:
    """Return the effects left to do after a pool was deleted. Its pods are deleted with it (owner references)."""
    return [UntaintNode(node.name, TAINT_SPARE, name) for node in nodes if _was_spare(node, name)]


def _step(snap: PoolSnapshot, spare: SpareStatus, tests: dict[str, PodView]) -> SpareStatus | None:
    """Return the spare as observed now; None when it leaves the pool."""
    node = snap.nodes.get(spare.node)
    if spare.state == "Claimed":
        # A claim is ended by its job alone, as long as the job lives.
        if job_uid(spare.claimed_by) in snap.live_jobs:
            return spare
        # Processes that are still ending would disturb the test.
        if _trainers(snap, spare.node):
            return replace(spare, message="its job is over; pods of it are still ending")
        # The job may have left the node in any state.
        spare = begin_test(spare, snap.now)
    if node is None or not is_selected(snap.pool, node):
        return None
    # What stands against any use of the node comes before its test's result.
    hindrance = obstacle(snap.pool, node) or _trouble(snap, spare.node) or _users(snap, spare)
    if hindrance:
        if spare.state == "Unavailable":
            return replace(spare, message=hindrance)
        return SpareStatus(node=spare.node, state="Unavailable", message=hindrance, since=timestamp(snap.now))
    if spare.state == "Unavailable":
        return begin_test(spare, snap.now)
    if spare.state == "Failed" and _is_worth_a_retest(snap, spare):
        return begin_test(spare, snap.now)
    if spare.state == "Testing":
        return _tested(snap, spare, tests)
    return spare


def _trouble(snap: PoolSnapshot, node: str) -> str:
    return f"the node reports {snap.troubled[node]}" if node in snap.troubled else ""


def _left_for_trouble(snap: PoolSnapshot, spares: Sequence[SpareStatus]) -> dict[str, str]:
    """Return the nodes that might join but for the trouble that they report, with the trouble in words."""
    without = candidates(snap.pool, snap.nodes.values(), {spare.node for spare in spares})
    return {node: snap.troubled[node] for node in without if node in snap.troubled}


def _users(snap: PoolSnapshot, spare: SpareStatus) -> str:
    """Return who uses the node although no job has claimed it, in words; "" if it is free.

    Training pods on a spare that is being tested belong to the job that has just released the spare. They end by
    themselves.
    """
    pods = tenants(snap.occupants.get(spare.node, []))
    if spare.state != "Testing":
        pods += _trainers(snap, spare.node)
    return f"pods of others run on it: {listed(sorted(pods))}" if pods else ""


def _trainers(snap: PoolSnapshot, node: str) -> list[str]:
    return trainers(snap.occupants.get(node, []))


def _is_worth_a_retest(snap: PoolSnapshot, spare: SpareStatus) -> bool:
    """Check whether to test a failed spare again: after a while, or at once when the pool's spec changed."""
    changed = snap.pool.status.observed_generation != snap.pool.metadata.generation
    return changed or snap.now - unix_seconds(spare.since) >= FAILED_SPARE_RETEST_SECONDS


def _tested(snap: PoolSnapshot, spare: SpareStatus, tests: dict[str, PodView]) -> SpareStatus:
    pod = tests.get(_test_name(snap.pool, spare))
    if pod is None:
        return replace(spare, message=_why_no_test(snap, spare))
    # no tenants: with some it would be unavailable
    result = weigh(pod, _reference(snap, spare.node), tenants=[])
    pulled = _pulled(pod, len(snap.pool.spec.images))
    match result.outcome:
        case "Running":
            return replace(spare, message=result.message, images=pulled)
        case "Failed":
            return replace(spare, state="Failed", message=result.message, since=timestamp(snap.now), gemm_gflops="")
        case "Slow" if spare.slow_tests + 1 >= SLOW_TESTS:
            return _failed(spare, result.message, snap.now)
        case "Slow":
            return _tested_again(spare, spare.slow_tests + 1, result.message, snap.now, APART_SECONDS)
        case "Disturbed":  # says nothing of the node, however often: it is ready soon after the others are quiet
            return _tested_again(spare, spare.slow_tests, result.message, snap.now, DISTURBED_APART_SECONDS)
        case "Passed":
            since, score = timestamp(snap.now), f"{result.gflops:.2f}"
            return SpareStatus(node=spare.node, state="Ready", since=since, gemm_gflops=score, images=pulled)


def _pulled(pod: PodView, images: int) -> str:
    """Return how many of the pool's images the test has pulled, such as ``1/2``; "" for none to pull."""
    done = sum(container.exit_code == 0 for name, container in pod.containers.items() if name.startswith(PULL))
    return f"{done}/{images}" if images else ""


def _history(snap: PoolSnapshot, tests: dict[str, PodView]) -> list[NodeChecks]:
    """Return the nodes' tests with those that have ended at this look."""
    checks = snap.pool.status.checks
    for spare in snap.pool.status.spares:
        pod, node = tests.get(_test_name(snap.pool, spare)), snap.nodes.get(spare.node)
        if spare.state != "Testing" or pod is None or node is None:
            continue
        result = weigh(pod, _reference(snap, spare.node), tenants=[])
        if result.outcome != "Running":
            checks = recorded(checks, spare.node, node.uid, result, snap.now)
    return list(checks)


def _reference(snap: PoolSnapshot, name: str) -> Reference:
    """Return what a test of a spare is compared with."""
    node = snap.nodes.get(name)
    others = unlike(name, snap.nodes)
    return reference(snap.pool, name, node.uid if node is not None else "", unlike=others, least=MIN_PEERS)


def _why_no_test(snap: PoolSnapshot, spare: SpareStatus) -> str:
    if _trainers(snap, spare.node):
        return "waits until the training pods on it have ended"
    return f"the API server refuses its test's pod: {snap.refused}" if snap.refused else spare.message


def _failed(spare: SpareStatus, message: str, now: float) -> SpareStatus:
    return SpareStatus(node=spare.node, state="Failed", message=message, since=timestamp(now))


def _tested_again(spare: SpareStatus, slow_tests: int, message: str, now: float, apart: float) -> SpareStatus:
    """Return the spare with its next test ``apart`` seconds later: what disturbed this test is to be over by then."""
    return replace(
        begin_test(spare, now),
        slow_tests=slow_tests,
        next_test=timestamp(now + apart),
        message=f"{message}; it is tested again",
    )


def _wait_seconds(spare: SpareStatus, now: float) -> float:
    """Return the seconds until the spare's next test may begin."""
    return max(0.0, unix_seconds(spare.next_test) - now) if spare.next_test else 0.0


def _peers_gflops(snap: PoolSnapshot, spare: SpareStatus, spares: Sequence[SpareStatus]) -> float | None:
    """Return the median score of the other spares; None where these are too few to say which spare is slow."""
    left_out = {spare.node, *unlike(spare.node, snap.nodes)}
    scores = [score for peer in spares if peer.node not in left_out and (score := gflops(peer))]
    return statistics.median(scores) if len(scores) >= MIN_PEERS else None


def _again_beside_peers(snap: PoolSnapshot, spare: SpareStatus, spares: Sequence[SpareStatus]) -> SpareStatus:
    """Test a ready spare again when it is far slower than peers that joined later; its first test counts as slow."""
    score = gflops(spare) if spare.state == "Ready" else None
    median = _peers_gflops(snap, spare, spares) if score is not None else None
    if score is None or median is None or not is_slow(score, median):
        return spare
    message = f"its test is {ratio(score, median):.1f}x slower than the median of its peers ({median:.1f} GFLOP/s)"
    return _tested_again(spare, 1, message, snap.now, APART_SECONDS)


def _resized(snap: PoolSnapshot, spares: list[SpareStatus]) -> list[SpareStatus]:
    """Release the spares beyond the pool's size, and choose those that are missing. Claimed spares do not count."""
    size = snap.pool.spec.size
    if size == 0:
        return [spare for spare in spares if spare.state == "Claimed"]
    free = [spare for spare in spares if spare.state in ("Testing", "Ready")]
    # The spares that stay are those that a job could take at once, the fastest first.
    by_worth = sorted(free, key=lambda spare: (spare.state != "Ready", -(gflops(spare) or 0.0), spare.node))
    surplus = {spare.node for spare in by_worth[size:]}
    kept = [spare for spare in spares if spare.node not in surplus]
    fresh = [node for node in _candidates(snap, spares) if is_free(snap.occupants.get(node))]
    wanted = max(0, size - len(free))
    return [*kept, *(SpareStatus(node=node, state="Testing", since=timestamp(snap.now)) for node in fresh[:wanted])]


def is_free(occupants: Sequence[Occupant] | None) -> bool:
    """Check whether a node may join. ``occupants`` None: not yet known who is on the node."""
    return occupants is not None and not tenants(occupants) and not trainers(occupants)


def _candidates(snap: PoolSnapshot, spares: Sequence[SpareStatus]) -> list[str]:
    return candidates(snap.pool, snap.nodes.values(), {spare.node for spare in spares} | snap.troubled.keys())


def _in_use(snap: PoolSnapshot, spares: Sequence[SpareStatus]) -> list[str]:
    """Return the nodes that might join if other pods did not run there."""
    looked_at = [node for node in _candidates(snap, spares) if node in snap.occupants]
    return [node for node in looked_at if not is_free(snap.occupants[node])]


def _effects(snap: PoolSnapshot, spares: Sequence[SpareStatus], tests: dict[str, PodView]) -> list[Effect]:
    due = {
        _test_name(snap.pool, spare): spare
        for spare in spares
        if spare.state == "Testing" and not _trainers(snap, spare.node) and _wait_seconds(spare, snap.now) == 0
    }
    # A test's pod stays only while its test is due: its name says which test it is of.
    over = [pod for test, pod in tests.items() if test not in due]
    deletions: list[Effect] = [DeletePod(pod) for pod in (*over, *_left_behind(snap)) if not pod.deleting]
    creations: list[Effect] = [
        snap.start_test(test, spare.node, PURPOSE_SPARE, snap.pool.spec.images)
        for test, spare in due.items()
        if test not in tests
    ]
    return [*_taints(snap, spares), *deletions, *creations]


def _taints(snap: PoolSnapshot, spares: Sequence[SpareStatus]) -> list[Effect]:
    """Keep the pool's taint on its spares, and on no other node; the annotations of spares are set with it."""
    name = snap.pool.metadata.name
    kept = {spare.node for spare in spares}
    nodes = snap.nodes.values()
    wanted = snap.settings.spare_annotations
    missing = sorted(
        node.name
        for node in nodes
        if node.name in kept
        # The setting may be newer than the taint.
        and (node.taints.get(TAINT_SPARE) != name or spare_annotations.changes(node.annotations, wanted))
    )
    return [
        *(TaintNode(node, TAINT_SPARE, name) for node in missing),
        *(
            UntaintNode(node.name, TAINT_SPARE, name)
            for node in nodes
            if node.name not in kept and _was_spare(node, name)
        ),
    ]


def _was_spare(node: NodeView, pool: str) -> bool:
    """Check whether the node has the pool's taint, or the annotations of a spare without the taint of any pool."""
    taint = node.taints.get(TAINT_SPARE)
    return taint == pool or (taint is None and spare_annotations.RECORD in node.annotations)


def _left_behind(snap: PoolSnapshot) -> list[PodView]:
    """Return the tests of excluded nodes, and their controls, whose jobs were deleted before they removed them."""
    longest = START_SECONDS + longest_seconds(snap.pool) + UNREAD_SECONDS
    purposes = (PURPOSE_EXCLUDED, PURPOSE_CONTROL)
    return [
        pod
        for pod in snap.burn_ins
        if pod.labels.get(LABEL_PURPOSE) in purposes and snap.now - pod.created_unix > longest
    ]


# -- small things ------------------------------------------------------------------------------------------------------


def _test_name(pool: WarmPool, spare: SpareStatus) -> str:
    return burn_in_name(pool.metadata.uid, spare.node, spare.since)


def job_uid(claim_key: str) -> str:
    """Return the uid of the job that holds a claim; "" for a key that names none."""
    parts = claim_key.split("/")
    return parts[2] if len(parts) > 2 else ""
