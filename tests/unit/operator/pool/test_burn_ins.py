"""Tests of nodes that jobs have left, together with tests of free spares."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_core.recovery import Exclusion
from falcon_core.wire.measurement.burn_in import BurnInReport, encode_report
from falcon_operator.api.common import LABEL_POOL, LABEL_ROLE
from falcon_operator.api.warmpool import NodeCheck, NodeChecks, WarmPool
from falcon_operator.base.ports import ContainerView, Manifest, Occupant, PodSettings, PodView, Rejected
from falcon_operator.manifests.burn_in import LABEL_PURPOSE, PURPOSE_CONTROL, ROLE_BURN_IN
from falcon_operator.pool.burn_ins import BurnIns
from tests.unit.operator.pool.pool_looks import NOW, a_node, a_pool, spare

replace = msgspec.structs.replace
NODES = {name: a_node(name, uid=f"uid-{name}") for name in ("left", "a", "b", "c")}
LEFT = Exclusion(node="left", reason="slow", at=NOW, test_since=NOW)


class Pods:
    """The operator's namespace, without a scheduler: a fake for the API server."""

    def __init__(self, room: int = 9) -> None:
        self.pods: dict[str, PodView] = {}
        self.occupants: list[Occupant] = []
        self.room = room

    async def create_pod(self, manifest: Manifest) -> None:
        labels, name = manifest["metadata"]["labels"], manifest["metadata"]["name"]
        assert (labels[LABEL_ROLE], labels[LABEL_POOL]) == (ROLE_BURN_IN, "spares")
        if len(self.pods) >= self.room and labels[LABEL_PURPOSE] == PURPOSE_CONTROL:
            raise Rejected("exceeded quota")
        terms = manifest["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        [node] = terms["nodeSelectorTerms"][0]["matchFields"][0]["values"]
        self.pods[name] = PodView(
            namespace="falcon-system", name=name, uid=name, labels=labels, node=node, phase="Running", started_unix=NOW
        )

    async def list_pods(self, namespace: str, labels: dict[str, str]) -> list[PodView]:
        return [pod for pod in self.pods.values() if labels.items() <= pod.labels.items()]

    async def list_occupants(self, node: str, *, fresh: bool) -> list[Occupant]:
        return self.occupants

    async def delete_pod(self, pod: PodView) -> None:
        del self.pods[pod.name]

    def on(self, node: str) -> PodView:
        [pod] = [pod for pod in self.pods.values() if pod.node == node]
        return pod

    def end(self, node: str, gflops: float, **fields: Any) -> None:
        report = encode_report(BurnInReport(gflops=gflops, run_delay=0.6, throttled=0.0)).decode()
        ended = ContainerView(name="burn-in", exit_code=0, exit_message=report)
        pod = replace(self.on(node), phase="Succeeded", containers={"burn-in": ended}, **fields)
        self.pods[pod.name] = pod


class _Clock:
    def unix(self) -> float:
        return NOW


def _burn_ins(pods: Pods) -> BurnIns:
    return BurnIns(pods, "falcon-system", _Clock())  # type: ignore[arg-type]


SETTINGS = PodSettings(agent_image="agent:1", gateways="gateway:7443")
SPARES = a_pool(*(spare(name, gemm_gflops="100") for name in "abc"), size=3)


async def _started(pods: Pods, pool: WarmPool = SPARES) -> BurnIns:
    tests = _burn_ins(pods)
    await tests.start("left", NOW, pool, SETTINGS, NODES)
    return tests


async def _outcome(tests: BurnIns, pool: WarmPool = SPARES, entry: Exclusion = LEFT) -> tuple[str, str]:
    results = await tests.look([entry], pool, "ml", NODES)
    return (results["left"].outcome, results["left"].message) if "left" in results else ("", "")


async def test_two_free_spares_are_tested_with_the_node() -> None:
    pods = Pods()
    tests = await _started(pods)
    assert sorted(pod.node for pod in pods.pods.values()) == ["a", "b", "left"]
    await tests.start("left", NOW, SPARES, SETTINGS, NODES)
    assert len(pods.pods) == 3, "nothing more while they run"


async def test_a_verdict_waits_for_the_controls_that_have_begun() -> None:
    pods = Pods()
    tests = await _started(pods)
    pods.end("left", 30.0)
    assert await _outcome(tests) == ("Running", "the same test of a spare has yet to end")
    pods.end("a", 40.0)
    pods.pods[pods.on("b").name] = replace(pods.on("b"), started_unix=0.0, phase="Pending")
    outcome, message = await _outcome(tests)
    assert outcome == "Running"
    assert "but spares were as slow at the same time (1.3x); it is tested again" in message


@pytest.mark.parametrize(
    ("controls", "said"),
    [
        ([90.0, 40.0], "its test is 2.5x slower than itself at then (100.0 GFLOP/s); it is tested again"),
        ([45.0, 40.0], "but spares were as slow at the same time (1.1x)"),
        ([], "but others used its CPUs meanwhile: waited for a CPU 60%"),
    ],
    ids=["a control was fast", "all waited", "no control"],
)
async def test_a_wait_for_cpus_excuses_a_node_beside_itself_where_its_controls_show_it_too(
    controls: list[float], said: str
) -> None:
    """The node was faster than all spares once. Its own daemon may take its CPUs: only the spares show who waited."""
    best = NodeChecks(
        node="left", uid=NODES["left"].uid, checks=[NodeCheck(at="then", outcome="Passed", gflops="100.00")]
    )
    spares = a_pool(*(spare(name, gemm_gflops="60") for name in "abc"), size=3)
    pool = replace(spares, status=replace(spares.status, checks=[best]))
    pods = Pods(room=9 if controls else 0)
    tests = await _started(pods, pool)
    pods.end("left", 40.0)
    for node, gflops in zip("ab", controls, strict=False):
        pods.end(node, gflops)
    outcome, message = await _outcome(tests, pool)
    assert outcome == "Running"
    assert said in message


async def test_a_control_that_ran_at_another_time_says_nothing() -> None:
    pods = Pods()
    tests = await _started(pods)
    pods.end("left", 30.0)
    for name in "ab":
        pods.end(name, 30.0, started_unix=NOW + 60)
    _, message = await _outcome(tests)
    assert message.startswith("its test is 3.3x slower than the median of its peers (100.0 GFLOP/s); it is tested")


async def test_a_control_ends_when_its_spare_is_claimed() -> None:
    pods = Pods()
    tests = await _started(pods)
    claimed = replace(SPARES.status.spares[0], state="Claimed", claimed_by="ns/job/uid-1/7")
    status = replace(SPARES.status, spares=[claimed, *SPARES.status.spares[1:]])
    await _outcome(tests, replace(SPARES, status=status))
    assert sorted(pod.node for pod in pods.pods.values()) == ["b", "left"]


async def test_the_controls_go_with_their_test() -> None:
    pods = Pods()
    tests = await _started(pods)
    await _outcome(tests, entry=replace(LEFT, test="Passed"))
    assert pods.pods == {}


async def test_a_test_runs_without_controls_where_there_is_no_room_for_them() -> None:
    pods = Pods(room=0)
    await _started(pods)
    assert [pod.node for pod in pods.pods.values()] == ["left"]


@pytest.mark.parametrize(("role", "excused"), [("burn-in", True), ("", False)])
async def test_a_test_for_another_job_on_the_node_is_a_neighbour(role: str, excused: bool) -> None:
    pods = Pods(room=0)
    tests = await _started(pods)
    own = pods.on("left")
    other = "falcon-burn-in-of-another-job" if role else own.name
    pods.occupants = [Occupant(namespace="falcon-system", name=other, role="burn-in")]
    pods.end("left", 30.0)
    # The end is not known before this look, so that the present pods count as neighbours of the test.
    _, message = await _outcome(tests)
    assert ("others used its CPUs meanwhile" in message) == excused
