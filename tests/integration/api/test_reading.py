"""What people read: ``kubectl explain``, the printer columns, and a status that comes back as it was written."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec
import pytest

from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.model.membership import Exclusion
from falcon_core.recovery.model.slowdown import IterationTimes, SlowdownOnset, SlowIncident
from falcon_core.recovery.model.state import Levels, RecoveryState
from falcon_core.signals.changepoint.generation_level import Level
from falcon_operator.api.common import Condition
from falcon_operator.api.trainingjob import Counters, DiagnosisStatus, DoneStep, IterationStatus, TrainingJobStatus
from falcon_operator.api.trainingrun import ClosedIncident, RunMember, TrainingRunSpec
from tests.integration.api.apiserver import ApiServer
from tests.integration.api.manifests import TRAINING_JOB, changed

STATUS = TrainingJobStatus(
    observed_generation=1,
    state="Degraded",
    summary="rank 2 on node-c has taken 2.9x its normal compute time since 12:04:10; replacing",
    ready="3/3",
    iteration="612ms",
    healthy_iteration="231ms",
    iterations=IterationStatus(current_microseconds=612_000, healthy_microseconds=231_000, count=412),
    conditions=[
        Condition(
            type="Ready",
            status="True",
            reason="AllRanksTrain",
            message="3 of 3 ranks train",
            last_transition_time="2026-11-20T12:00:00Z",
            observed_generation=1,
        )
    ],
    counters=Counters(restarts=1, replacements=2),
    diagnoses=[
        DiagnosisStatus(
            id="i-1",
            what="fail-slow, computation",
            where="rank 2 (pod read-2-x7kfd, node node-c)",
            since="2026-11-20T12:04:10Z (iteration 412, reported after 9 iterations)",
            done=[DoneStep(at="2026-11-20T12:04:31Z", what="node-c excluded")],
            state="Mitigating",
            node="node-c",
            rank=2,
        )
    ],
    start_time="2026-11-20T12:00:00Z",
)


SLOW = SlowIncident(
    id="i-1",
    phase="Detected",
    onset=SlowdownOnset(at=1763640250.25, generation=1, iteration=412, reported_iteration=421),
    times=IterationTimes(healthy_ns=231_000_000, slow_ns=612_000_000),
    loss=Loss(seconds=13.3, generation=1, counted_iterations=421),
)
RUN = TrainingRunSpec(
    generation=2,
    phase="Run",
    nodes=2,
    members=[RunMember(suffix="x7kfd", uid="uid-0", node="node-a"), RunMember(suffix="bcdfg")],
    exclusions=[Exclusion(node="node-c", reason="slow", at=1763640250.0)],
    counters=Counters(restarts=1, replacements=3),
    recovery=RecoveryState(
        levels=Levels(
            settled=Level(iteration_ns=231_000_000, noise=0.02, iterations=400, world_size=2, period_calls=7)
        ),
        slowdowns=[SLOW],
        overheads={"ReplaceNode": 13.0},
    ),
    history=[ClosedIncident(at=1763640300.5, outcome="Relieved", slow=SLOW)],
)


@pytest.fixture
def job(api: ApiServer) -> Iterator[str]:
    name = "read"
    api.ok("kubectl", "create", "-f", "-", stdin=json.dumps(changed(TRAINING_JOB, {"metadata.name": name})))
    written = json.dumps({"status": msgspec.to_builtins(STATUS)})
    api.ok("kubectl", "patch", "ftj", name, "--subresource=status", "--type=merge", "--patch", written)
    yield name
    api.ok("kubectl", "delete", "ftj", name)


def test_a_status_comes_back_as_it_was_written(api: ApiServer, job: str) -> None:
    """Nothing is pruned, nothing is refused: empty strings of fields that are not known yet among them."""
    stored = json.loads(api.ok("kubectl", "get", "ftj", job, "-o", "json"))["status"]
    assert stored == msgspec.to_builtins(STATUS)
    assert msgspec.convert(stored, TrainingJobStatus) == STATUS


def test_columns(api: ApiServer, job: str) -> None:
    header, row = api.ok("kubectl", "get", "ftj", job).splitlines()
    assert header.split() == ["NAME", "READY", "ITERATION", "HEALTHY", "STATE", "SUMMARY", "AGE"]
    assert row.split()[:5] == [job, "3/3", "612ms", "231ms", "Degraded"]
    assert STATUS.summary in row
    wide = api.ok("kubectl", "get", "ftj", job, "-o", "wide").splitlines()[0].split()
    assert wide[6:10] == ["RESTARTS", "REPLACED", "POOL", "AGE"]


@pytest.fixture
def run(api: ApiServer) -> Iterator[str]:
    yield store_run(api, "remembered", msgspec.to_builtins(RUN))
    api.ok("kubectl", "delete", "ftr", "remembered")


def store_run(api: ApiServer, name: str, spec: dict[str, object]) -> str:
    """Create a TrainingRun; returns its name. Strict: a field that the definition does not know would be refused."""
    metadata = {"name": name, "namespace": "default"}
    body = {"apiVersion": "falcon.dev/v1alpha1", "kind": "TrainingRun", "metadata": metadata, "spec": spec}
    api.ok("kubectl", "create", "--validate=strict", "-f", "-", stdin=json.dumps(body))
    return name


def test_a_run_comes_back_as_it_was_written(api: ApiServer, run: str) -> None:
    stored = json.loads(api.ok("kubectl", "get", "ftr", run, "-o", "json"))["spec"]
    assert msgspec.convert(stored, TrainingRunSpec) == RUN


def test_columns_of_a_run(api: ApiServer, run: str) -> None:
    header, row = api.ok("kubectl", "get", "ftr", run, "-o", "wide").splitlines()
    assert header.split() == ["NAME", "GENERATION", "PHASE", "NODES", "RESTARTS", "REPLACEMENTS", "AGE"]
    assert row.split()[:6] == [run, "2", "Run", "2", "1", "3"]


def test_a_word_that_a_newer_version_stored_is_taken(api: ApiServer) -> None:
    """What the operator remembers must never be refused for a word: it could not write anything down any more."""
    slow = {**msgspec.to_builtins(SLOW), "phase": "Bargaining"}
    spec = {**msgspec.to_builtins(RUN), "phase": "Hibernate", "recovery": {"slowdowns": [slow]}}
    name = store_run(api, "from-tomorrow", spec)
    stored = json.loads(api.ok("kubectl", "get", "ftr", name, "-o", "json"))["spec"]
    assert (stored["phase"], stored["recovery"]["slowdowns"][0]["phase"]) == ("Hibernate", "Bargaining")
    api.ok("kubectl", "delete", "ftr", name)


def test_the_largest_run_is_taken(api: ApiServer) -> None:
    """4 096 members, and what the server stores of them is within the bound that the design sets."""
    uid, node = "01234567-89ab-cdef-0123-456789abcdef", "ip-10-123-231-101.eu-central-1.internal"
    members = [RunMember(suffix="x7kfd", uid=uid, node=node)] * 4096
    spec = msgspec.to_builtins(msgspec.structs.replace(RUN, members=members, nodes=4096))
    name = store_run(api, "largest", spec)
    stored = api.ok("kubectl", "get", "--raw", f"/apis/falcon.dev/v1alpha1/namespaces/default/trainingruns/{name}")
    assert len(stored) <= 512 * 1024
    api.ok("kubectl", "delete", "ftr", name)


def test_names(api: ApiServer, job: str) -> None:
    assert job in api.ok("kubectl", "get", "falcon")  # the category
    assert job in api.ok("kubectl", "get", "trainingjob")


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("trainingjob", "which GPU, link or node"),
        ("trainingjob.spec.detection", "verifyPercent"),
        ("trainingjob.spec.detection.medianPercent", "Default 150"),
        ("trainingjob.spec.recovery.window", "1h30m"),
        ("trainingjob.spec.mitigation.mode", "only failures are handled"),
        ("trainingjob.spec.mitigation.confidence", "Low replaces the node of every rank that is named"),
        ("trainingjob.spec.mitigation.strategies.type", "AdjustMicrobatches"),
        ("trainingjob.spec.mitigation.strategies.type", "exchange their roles"),
        ("trainingjob.spec.checkpoint.intervalSeconds", "how often"),
        ("trainingjob.spec.weight", "Not supported yet"),
        ("trainingjob.spec.template.spec.containers.command", "falcon-launch"),
        ("trainingjob.status.diagnoses.evidence", "What was measured"),
        ("warmpool.spec.burnIn.seconds", "Length of the test"),
        ("warmpool.spec.burnIn.tolerations", "nvidia.com/gpu"),
    ],
)
def test_explain(api: ApiServer, field: str, says: str) -> None:
    assert says in " ".join(api.ok("kubectl", "explain", field).split())


def test_no_strategy_is_said_to_do_what_it_does_not(api: ApiServer) -> None:
    """Check finding U9: ReplaceNode was said to take a checkpoint."""
    assert "takes a checkpoint" not in api.ok("kubectl", "explain", "trainingjob.spec", "--recursive=false")
    for field in ("mitigation", "mitigation.strategies", "mitigation.strategies.type"):
        assert "a checkpoint" not in " ".join(api.ok("kubectl", "explain", f"trainingjob.spec.{field}").split())


def test_every_field_that_is_explained_has_a_description(api: ApiServer) -> None:
    """Read from the server's own OpenAPI; only the template's passed-through fields, which have no type, go without."""
    paths = json.loads(api.ok("kubectl", "get", "--raw", "/openapi/v3"))["paths"]
    document = json.loads(api.ok("kubectl", "get", "--raw", paths["apis/falcon.dev/v1alpha1"]["serverRelativeURL"]))
    schemas = document["components"]["schemas"]
    for kind in ("TrainingJob", "WarmPool"):
        properties = schemas[f"dev.falcon.v1alpha1.{kind}"]["properties"]
        assert list(undescribed(properties["spec"], "spec")) == []
        assert list(undescribed(properties["status"], "status")) == []


def undescribed(node: dict[str, object], at: str) -> Iterator[str]:
    """Return the paths of typed properties without a description."""
    for name, child in _properties(node).items():
        if "type" in child and not child.get("description"):
            yield f"{at}.{name}"
        yield from undescribed(child, f"{at}.{name}")


def _properties(node: dict[str, object]) -> dict[str, dict[str, object]]:
    items = node.get("items")
    holder = items if isinstance(items, dict) else node
    found = holder.get("properties", {})
    assert isinstance(found, dict)
    return found
