"""What a pool remembers of its nodes' tests: bounded, and nothing that is still compared with is forgotten."""

from __future__ import annotations

import msgspec

from falcon_operator.api.warmpool import NodeChecks, WarmPoolStatus
from falcon_operator.intent.model.snapshot import BurnInResult
from falcon_operator.pool.history import MOST_CHECKS, MOST_NODES, recorded, reference
from tests.unit.operator.pool.pool_looks import NOW, a_pool, spare

PASSED = BurnInResult(outcome="Passed", gflops=100.0, scores={"gemm": 400.0})
SLOW = BurnInResult(outcome="Slow", gflops=50.0, message="its test is 2.0x slower " + "x" * 500)


def test_a_node_keeps_its_newest_tests_and_one_that_passed() -> None:
    history: list[NodeChecks] = recorded([], "a", "uid", PASSED, NOW)
    for number in range(20):
        history = recorded(history, "a", "uid", SLOW, NOW + number)
    (entry,) = history
    assert [check.outcome for check in entry.checks] == ["Passed"] + ["Slow"] * MOST_CHECKS
    assert entry.checks[0].scores == {"gemm": "400"}


def test_the_history_of_the_largest_pool_fits_into_an_object() -> None:
    many = BurnInResult(outcome="Passed", gflops=1e6, scores={f"{'n' * 60}{rate:04}": 1.2345 for rate in range(32)})
    history: list[NodeChecks] = []
    for number in range(MOST_NODES + 10):
        for result in (many, *[SLOW] * MOST_CHECKS):
            history = recorded(history, f"node-{number}", f"uid-{number}", result, NOW)
    assert len(history) == MOST_NODES
    assert history[-1].node == f"node-{MOST_NODES + 9}"
    assert len(msgspec.json.encode(WarmPoolStatus(checks=history))) < 1_200_000


def test_a_slow_decline_never_becomes_what_is_usual() -> None:
    history: list[NodeChecks] = []
    for score in (100.0, 80.0, 70.0):
        history = recorded(history, "a", "uid", msgspec.structs.replace(PASSED, gflops=score), NOW)
    pool = a_pool(spare("a"))
    pool = msgspec.structs.replace(pool, status=msgspec.structs.replace(pool.status, checks=history))
    assert reference(pool, "a", "uid", least=2).gflops == 100.0
    assert reference(pool, "a", "another", least=2).gflops is None
    assert reference(pool, "b", "uid-b", least=1).gflops == 70.0, "a peer's newest score counts, also without a spare"


def test_rates_of_devices_are_compared_where_enough_peers_have_them() -> None:
    history: list[NodeChecks] = []
    for name, rate in (("b", 400.0), ("c", 420.0)):
        history = recorded(history, name, name, msgspec.structs.replace(PASSED, scores={"gemm": rate}), NOW)
    pool = a_pool(spare("a"))
    pool = msgspec.structs.replace(pool, status=msgspec.structs.replace(pool.status, checks=history))
    assert reference(pool, "a", "a", least=2).scores == {"gemm": 410.0}
    assert reference(pool, "a", "a", unlike=["b"], least=2).scores == {}
