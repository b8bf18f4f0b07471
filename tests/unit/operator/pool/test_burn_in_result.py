"""What a burn-in's pod says of its node, alone and beside its peers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_core.judgement import JUDGEMENT
from falcon_core.wire.measurement.burn_in import BurnInReport, decode_report, encode_report
from falcon_operator.base.ports import ContainerView, PodView
from falcon_operator.intent.model.snapshot import BurnInResult
from falcon_operator.pool.burn_in_result import (
    MOST_TESTS,
    among_controls,
    beside_controls,
    is_settled,
    is_slow,
    listed,
    weigh,
)
from falcon_operator.pool.history import Reference


def ended(report: BurnInReport | str, exit_code: int = 0) -> PodView:
    """Return a test's pod after its end, with this termination message."""
    message = report if isinstance(report, str) else encode_report(report).decode()
    container = ContainerView(name="burn-in", exit_code=exit_code, exit_message=message)
    return PodView(namespace="falcon-system", name="test", uid="u", containers={"burn-in": container})


def test_a_report_of_a_newer_agent_can_be_read() -> None:
    assert decode_report('{"version": 2, "gflops": 41.5, "new": {"field": 1}}').gflops == 41.5
    with pytest.raises(ValueError, match="gflops"):
        decode_report('{"version": 1}')


def test_the_factor_itself_is_not_slow() -> None:
    assert not is_slow(100.0, 100.0 * JUDGEMENT.median_factor)
    assert is_slow(100.0, 100.0 * JUDGEMENT.median_factor + 1)


@pytest.mark.parametrize(
    ("gflops", "peers", "outcome", "ratio"),
    [(50.0, 100.0, "Slow", 2.0), (80.0, 100.0, "Passed", 1.25), (50.0, None, "Passed", None)],
)
def test_a_score_is_compared_with_its_peers(
    gflops: float, peers: float | None, outcome: str, ratio: float | None
) -> None:
    result = weigh(ended(BurnInReport(gflops=gflops)), Reference(gflops=peers), [])
    assert (result.outcome, result.gflops, result.ratio) == (outcome, gflops, ratio)


SLOW = BurnInReport(gflops=40.0, run_delay=0.0, throttled=0.0, stolen=0.0)
WAITED = BurnInReport(gflops=40.0, run_delay=0.6, throttled=0.0, stolen=0.0, cpu_pressure=0.7)
TENANT = ["team/greedy"]


@pytest.mark.parametrize(
    ("report", "tenants", "outcome"),
    [
        (WAITED, TENANT, "Disturbed"),
        (WAITED, [], "Slow"),  # no other pod is there: the node itself gives less than it should
        (msgspec.structs.replace(WAITED, throttled=0.6), TENANT, "Slow"),  # by the test's own quota
        (msgspec.structs.replace(WAITED, run_delay=0.1), TENANT, "Slow"),  # which explains a tenth of it
        (msgspec.structs.replace(WAITED, run_delay=1.0), TENANT, "Disturbed"),
        (msgspec.structs.replace(SLOW, run_delay=None), TENANT, "Disturbed"),  # unknown is not zero
        (msgspec.structs.replace(SLOW, stolen=0.6), [], "Passed"),  # by the hypervisor
        (msgspec.structs.replace(SLOW, stolen=0.2), [], "Slow"),  # which took too little to explain it
        (msgspec.structs.replace(SLOW, stolen=None, run_delay=None), [], "Slow"),
    ],
)
def test_who_slowed_a_test(report: BurnInReport, tenants: list[str], outcome: str) -> None:
    assert weigh(ended(report), Reference(gflops=100.0), tenants).outcome == outcome


def test_a_score_does_not_depend_on_what_the_hypervisor_took() -> None:
    spare = weigh(ended(BurnInReport(gflops=50.0, stolen=0.5)), Reference(), [])
    assert spare.gflops == 100.0
    node = BurnInReport(gflops=60.0, stolen=0.0)
    assert weigh(ended(node), Reference(gflops=spare.gflops), []).outcome == "Slow", (
        "beside a spare that was tested in a bad moment"
    )
    assert weigh(ended(BurnInReport(gflops=1.0, stolen=1.0)), Reference(), []).gflops == pytest.approx(10.0)


def test_a_disturbed_test_names_who_disturbed_it_and_how_much() -> None:
    assert weigh(ended(WAITED), Reference(gflops=100.0), TENANT).message == (
        "its test is 2.5x slower than the median of its peers (100.0 GFLOP/s), but others used its CPUs meanwhile:"
        " team/greedy on the node, waited for a CPU 60%, stolen by the hypervisor 0%, CPU pressure 70%"
    )
    unknown = weigh(ended(msgspec.structs.replace(SLOW, run_delay=None)), Reference(gflops=100.0), TENANT).message
    assert "waited for a CPU unknown" in unknown


def test_a_broken_disk_fails_however_fast_the_node_is() -> None:
    result = weigh(ended(BurnInReport(gflops=500.0, disk_error="EIO"), exit_code=1), Reference(gflops=100.0), [])
    assert (result.outcome, result.message) == ("Failed", "disk: EIO")


def test_a_pod_that_ended_without_a_container_says_why() -> None:
    pod = PodView(namespace="n", name="test", uid="u", phase="Failed", reason="Evicted", message="disk pressure")
    assert weigh(pod, Reference(), []).message == "the test's pod ended without a result: Evicted, disk pressure"
    waiting = PodView(namespace="n", name="test", uid="u", unschedulable="0/4 nodes are available")
    assert weigh(waiting, Reference(), []) == BurnInResult(outcome="Running", message="0/4 nodes are available")


@pytest.mark.parametrize(
    ("outcomes", "settled"),
    [
        (["Slow"], False),
        (["Slow", "Disturbed"], False),
        (["Slow", "Disturbed", "Slow"], True),
        (["Slow", "Passed"], True),
        (["Failed"], True),
        (["Disturbed"] * (MOST_TESTS - 1), False),
        (["Disturbed"] * MOST_TESTS, True),
    ],
)
def test_a_slow_test_is_confirmed_and_disturbed_tests_end(outcomes: list[Any], settled: bool) -> None:
    assert is_settled([BurnInResult(outcome=outcome) for outcome in outcomes]) is settled


def test_a_long_list_is_cut() -> None:
    assert listed(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert listed(["a"]) == "a"


def with_bench(message: str, exit_code: int | None = 0) -> PodView:
    """Return a test's pod of which the agent's own test has passed."""
    pod = ended(BurnInReport(gflops=100.0))
    bench = ContainerView(name="bench", exit_code=exit_code, exit_message=message)
    return msgspec.structs.replace(pod, containers={**pod.containers, "bench": bench})


DEVICES = Reference(gflops=100.0, scores={"gemm_bf16": 400.0, "h2d": 20.0})


@pytest.mark.parametrize(
    ("message", "exit_code", "outcome", "said"),
    [
        ('{"scores": {"gemm_bf16": 390, "h2d": 19, "new": 1}}', 0, "Passed", ""),
        ('{"scores": {}}', 0, "Passed", ""),
        ('{"scores": {"gemm_bf16": 200, "h2d": 19}}', 0, "Slow", "its gemm_bf16 is 2.0x slower"),
        ("CUDA error: device lost", 1, "Failed", "the pool's image ended with exit code 1: CUDA error: device lost"),
        ("nothing", 0, "Failed", "cannot be read"),
        ("", None, "Running", ""),
    ],
)
def test_the_devices_are_judged_by_the_slowest_of_their_rates(
    message: str, exit_code: int | None, outcome: str, said: str
) -> None:
    result = weigh(with_bench(message, exit_code), DEVICES, [])
    assert result.outcome == outcome
    assert said in result.message


def test_a_slow_device_counts_for_nothing_beside_the_accusers_pods() -> None:
    result = weigh(with_bench('{"scores": {"gemm_bf16": 200}}'), DEVICES, [], ["team/job-0"])
    assert result.outcome == "Disturbed"
    assert "team/job-0" in result.message


def test_a_slow_cpu_fails_whatever_the_devices_do() -> None:
    pod = msgspec.structs.replace(
        with_bench('{"scores": {"gemm_bf16": 400}}'),
        containers={
            **ended(SLOW).containers,
            "bench": ContainerView(name="bench", exit_code=0, exit_message='{"scores": {"gemm_bf16": 400}}'),
        },
    )
    assert weigh(pod, DEVICES, []).outcome == "Slow"


def test_beside_itself_a_wait_for_cpus_may_be_anybodys() -> None:
    own = Reference(gflops=100.0, own=True)
    assert weigh(ended(WAITED), own, []).outcome == "Disturbed"
    assert weigh(ended(msgspec.structs.replace(WAITED, throttled=0.6)), own, []).outcome == "Slow"
    assert weigh(ended(SLOW), own, []).outcome == "Slow"
    assert weigh(ended(BurnInReport(gflops=40.0)), own, []).outcome == "Slow", "no counter says otherwise"


@pytest.mark.parametrize(
    ("controls", "outcome"),
    [
        ([], "Disturbed"),
        ([BurnInResult(outcome="Running"), BurnInResult(outcome="Failed")], "Disturbed"),
        ([BurnInResult(outcome="Passed", gflops=45.0)], "Disturbed"),
        ([BurnInResult(outcome="Passed", gflops=45.0), BurnInResult(outcome="Passed", gflops=99.0)], "Slow"),
    ],
    ids=["none", "none has a score", "as slow", "one was fast"],
)
def test_beside_itself_and_controls_a_wait_is_excused_where_they_waited_too(
    controls: list[BurnInResult], outcome: str
) -> None:
    which = beside_controls(Reference(gflops=100.0, own=True), controls)
    assert among_controls(weigh(ended(WAITED), which, []), controls).outcome == outcome


def test_a_tenant_excuses_a_test_whatever_its_controls_show() -> None:
    controls = [BurnInResult(outcome="Passed", gflops=99.0)]
    which = beside_controls(Reference(gflops=100.0, own=True), controls)
    assert among_controls(weigh(ended(WAITED), which, TENANT), controls).outcome == "Disturbed"


def _slow(**fields: Any) -> BurnInResult:
    return BurnInResult(**{"outcome": "Slow", "gflops": 40.0, "ratio": 2.5, "message": "slow", **fields})


@pytest.mark.parametrize(
    ("controls", "outcome"),
    [
        ([], "Slow"),
        ([BurnInResult(outcome="Passed", gflops=45.0)], "Disturbed"),
        ([BurnInResult(outcome="Passed", gflops=45.0), BurnInResult(outcome="Passed", gflops=99.0)], "Slow"),
        ([BurnInResult(outcome="Running"), BurnInResult(outcome="Failed")], "Slow"),
    ],
    ids=["none", "as slow", "one was fast", "none has a score"],
)
def test_a_slow_test_counts_where_a_spare_was_faster_at_the_same_time(
    controls: list[BurnInResult], outcome: str
) -> None:
    assert among_controls(_slow(), controls).outcome == outcome


def test_the_rates_of_the_pools_image_are_compared_with_the_controls_too() -> None:
    node = _slow(gflops=100.0, scores={"gemm": 10.0, "copy": 5.0})
    assert among_controls(node, [BurnInResult(outcome="Passed", gflops=100.0, scores={"gemm": 11.0})]).outcome == (
        "Disturbed"
    )
    fast = BurnInResult(outcome="Passed", gflops=100.0, scores={"gemm": 30.0})
    assert among_controls(node, [fast]).outcome == "Slow"


def test_a_test_that_was_not_slow_needs_no_controls() -> None:
    passed = BurnInResult(outcome="Passed", gflops=90.0, ratio=1.1)
    assert among_controls(passed, [BurnInResult(outcome="Passed", gflops=20.0)]) == passed
