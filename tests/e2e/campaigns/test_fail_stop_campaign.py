"""One job takes all failures, one after the other: each is named, met by its step, and training goes on.

Each test heals the cluster, waits until the job trains, and brings one failure about. So a test can run alone, and one
that fails leaves the next a job that trains. ``outcome.suffer`` compares diagnosis, restart and nodes with what is
right for the fault; a test adds what its fault has to show besides.
"""

from __future__ import annotations

import signal
from random import Random

import pytest

from dev.cluster import faults
from dev.kubectl import Json, wait_for
from tests.e2e.bus import etcd_pod, gateway_pods
from tests.e2e.campaigns import failures
from tests.e2e.campaigns.failures import Kind, Planned
from tests.e2e.campaigns.outcome import Outcome, suffer
from tests.e2e.campaigns.stage import CHECKPOINT_EVERY, RANKS, Stage, finish
from tests.e2e.jobs import condition

RANK = 1  # that is hit: not the rank that writes the checkpoints
ADVANCED_STEPS = 20


class Before:
    """What the status said before a fault."""

    def __init__(self, stage: Stage) -> None:
        stage.wait_quiet()
        status = stage.job.status()
        self.known = {note["id"] for note in stage.job.diagnoses(status)}
        self.counters: Json = dict(status["counters"])
        self.uids = stage.job.pod_uids()
        self.member = stage.job.member(RANK)
        self.life = int(stage.run()["generation"]) - 1  # as the ranks count: from 0


def strike(stage: Stage, kind: Kind) -> Outcome:
    """Bring the fault about; fail unless the diagnosis, the repair and the nodes are right."""
    outcome = suffer(stage, Planned((kind,), (RANK,)), Random(1))
    print(f"{outcome.name}: {outcome.action or 'nothing done'}, trains again after {outcome.resumed} s")
    assert not outcome.problems, (outcome.problems, outcome.evidence)
    return outcome


def diagnosis(stage: Stage, before: Before) -> Json:
    """Return the failure's diagnosis as the status has it; fail where it has none or several."""
    notes = [note for note in stage.job.diagnoses() if note["id"] not in before.known and note.get("severity")]
    (note,) = notes
    print(note["where"], note["why"], note.get("evidence", ""), sep="\n  ")
    return note


def counted(stage: Stage, before: Before) -> tuple[int, int]:
    """Return restarts and replacements since then, as the status counts them."""
    now = stage.job.wait("the counters are shown", lambda s: s.get("state") == "Running", 30)["counters"]
    return now["restarts"] - before.counters["restarts"], now["replacements"] - before.counters["replacements"]


def check_redone_steps(stage: Stage, before: Before) -> None:
    """Check that training went on from the newest checkpoint, and that steps done again have the same losses."""
    steps = stage.progress.steps[0]
    reached = max(step.step for step in steps if step.life == before.life)
    again = [step for step in steps if step.life > before.life]
    redone = reached - (again[0].step - 1)
    print(f"step {reached} was reached, {redone} steps are done again")
    assert 0 <= redone <= CHECKPOINT_EVERY
    losses = {step.step: step.loss for step in steps if step.life == before.life}
    assert all(step.loss == losses[step.step] for step in again if step.step in losses), "bit for bit"


def check_untouched(stage: Stage, before: Before, steps: int = ADVANCED_STEPS) -> None:
    """Check that training goes on, and that neither a process nor a diagnosis was made."""
    reached = stage.progress.newest()
    wait_for("training goes on", lambda: stage.progress.newest() >= reached + steps, timeout_seconds=60)
    assert int(stage.run()["generation"]) == before.life + 1
    assert stage.job.pod_uids() == before.uids
    assert {note["id"] for note in stage.job.diagnoses()} == before.known


def wait_for_reports(stage: Stage) -> None:
    """Wait until the status counts iterations on."""
    reported = stage.job.status()["iterations"]["count"]
    stage.job.wait("reports arrive", lambda s: s["iterations"]["count"] > reported + 5, 90)


def test_a_killed_rank_is_restarted_in_its_pod(stage: Stage) -> None:
    before = Before(stage)
    strike(stage, failures.KILLED)
    note = diagnosis(stage, before)
    assert (note["rank"], note["cause"], note["severity"]) == (RANK, "ProcessKilled", "SEV2")
    assert stage.job.pod_uids() == before.uids
    assert counted(stage, before) == (1, 0)
    check_redone_steps(stage, before)


def test_an_exception_is_quoted_and_all_ranks_are_restarted_in_their_pods(stage: Stage) -> None:
    before = Before(stage)
    strike(stage, failures.RAISED)
    note = diagnosis(stage, before)
    assert (note["rank"], note["errorClass"], note["severity"]) == (RANK, "OtherSoftwareError", "SEV2")
    assert f"RuntimeError: {failures.OWN_ERROR} (suffering.py:" in note["why"]
    assert stage.job.pod_uids() == before.uids
    assert counted(stage, before) == (1, 0)


def test_storage_that_is_away_is_waited_for_and_does_not_count(stage: Stage) -> None:
    before = Before(stage)
    tried = len(stage.run()["recovery"].get("attempts", []))
    strike(stage, failures.STORAGE_AWAY)
    recovery = stage.run()["recovery"]
    made = recovery["attempts"][tried:]
    assert made or recovery["habits"].get("outage"), "nodes say so one after the other, or at once"
    assert {attempt["kind"] for attempt in made} <= {"Transient"}, "spec.recovery.restarts is not used up"
    assert stage.job.pod_uids() == before.uids


def test_a_container_out_of_memory_is_named_and_costs_no_node(stage: Stage) -> None:
    before = Before(stage)
    strike(stage, failures.OUT_OF_MEMORY)
    note = diagnosis(stage, before)
    assert (note["cause"], note["severity"]) == ("OutOfMemory", "SEV2")
    assert stage.job.member(RANK)["node"] == before.member["node"]
    assert counted(stage, before) == (1, 0)


def test_an_evicted_pod_is_made_again_and_the_condition_names_the_limit(stage: Stage) -> None:
    before = Before(stage)
    strike(stage, failures.EVICTED)
    note = diagnosis(stage, before)
    assert note["errorClass"] == "LocalStorageLimit"
    assert stage.job.member(RANK)["podUid"] != before.member["podUid"]
    assert {rank: uid for rank, uid in stage.job.pod_uids().items() if rank != RANK} == {
        rank: uid for rank, uid in before.uids.items() if rank != RANK
    }
    assert counted(stage, before) == (1, 0)


def test_a_hung_rank_is_named_and_all_ranks_are_restarted(stage: Stage) -> None:
    before = Before(stage)
    strike(stage, failures.STOPPED_OUTSIDE_CALLS)
    note = diagnosis(stage, before)
    assert (note["cause"], note["rank"], note["node"]) == ("Hang", RANK, before.member["node"])
    assert (note["severity"], note["state"]) == ("SEV2", "Resolved")
    assert note["why"].startswith(f"rank {RANK} never arrived at call ")
    assert f"of the communicator of all {RANKS} ranks, in which {RANKS - 1} ranks wait" in note["why"]
    assert "all ranks restarted in their pods" in note["done"][-1]["what"]
    assert stage.job.pod_uids() == before.uids
    assert counted(stage, before) == (1, 0)


def test_a_link_that_is_cut_for_some_seconds_restarts_nothing(stage: Stage) -> None:
    before = Before(stage)
    strike(stage, failures.LINK_CUT)
    assert (int(stage.run()["generation"]), stage.job.pod_uids()) == (before.life + 1, before.uids)
    assert counted(stage, before) == (0, 0)


def test_an_agent_that_dies_alone_is_reported_and_training_is_untouched(stage: Stage) -> None:
    before = Before(stage)
    # Stopped, not killed: the kubelet would restart it before anyone missed it.
    assert faults.send_signal(before.member["node"], failures.AGENT, signal.SIGSTOP, before.member["podUid"]) == 1
    stage.job.wait("AgentLost", lambda s: condition(s, "AgentLost").get("status") == "True", 30)
    check_untouched(stage, before)
    faults.send_signal(before.member["node"], failures.AGENT, signal.SIGCONT, before.member["podUid"])
    stage.job.wait("the agent is back", lambda s: condition(s, "AgentLost").get("status") == "False", 30)
    assert faults.send_signal(before.member["node"], failures.AGENT, signal.SIGKILL, before.member["podUid"]) == 1
    check_untouched(stage, before)


@pytest.mark.parametrize(
    "lose_data", [pytest.param(False, id="restarted", marks=pytest.mark.long), pytest.param(True, id="emptied")]
)
def test_etcd_that_is_restarted_or_emptied_is_never_noticed_by_training(stage: Stage, *, lose_data: bool) -> None:
    """The pod's volume goes with the pod: killing the process restarts etcd, deleting the pod loses its data."""
    before = Before(stage)
    if lose_data:
        stage.system.run("delete", "pod", etcd_pod(stage.system)["metadata"]["name"], "--grace-period=0", "--force")
    else:
        assert faults.send_signal(etcd_pod(stage.system)["spec"]["nodeName"], failures.ETCD, signal.SIGKILL) == 1
    check_untouched(stage, before)
    wait_for_reports(stage)
    check_untouched(stage, before, steps=1)


def test_a_gateway_dies_and_then_both_and_training_never_notices(stage: Stage) -> None:
    before = Before(stage)
    for lost in (1, 2):
        names = [pod["metadata"]["name"] for pod in gateway_pods(stage.system)[:lost]]
        stage.system.run("delete", "pod", *names, "--grace-period=0", "--force")
        check_untouched(stage, before, steps=10)
        wait_for_reports(stage)
        wait_for("two gateways serve", lambda: len(gateway_pods(stage.system)) == 2, timeout_seconds=90)
    check_untouched(stage, before, steps=1)


def test_a_killed_node_is_replaced_by_the_spare_and_no_more_than_an_interval_is_done_again(stage: Stage) -> None:
    before = Before(stage)
    strike(stage, failures.NODE_KILLED)
    note = diagnosis(stage, before)
    assert (note["cause"], note["node"], note["severity"]) == ("NodeLost", before.member["node"], "SEV1")
    after = stage.job.pod_uids()
    assert [rank for rank in before.uids if after[rank] != before.uids[rank]] == [RANK], "survivors keep their pods"
    restarts, replacements = counted(stage, before)
    assert (restarts >= 1, replacements) == (True, 1)
    check_redone_steps(stage, before)


def test_the_operator_killed_in_the_replacement_of_a_bad_gpus_node_finishes_it_once(stage: Stage) -> None:
    before = Before(stage)
    strike(stage, failures.BAD_GPU_AND_OPERATOR)
    note = diagnosis(stage, before)
    assert (note["errorClass"], note["severity"], note["node"]) == ("EccError", "SEV1", before.member["node"])
    assert note["rank"] == RANK
    assert f"RuntimeError: {failures.ECC} (suffering.py:" in note["why"]
    assert counted(stage, before) == (1, 1), "none on the bad node, and nothing twice"
    pods = [pod["metadata"]["name"] for pod in stage.job.pods() if not pod["metadata"].get("deletionTimestamp")]
    assert sorted(pods) == sorted(member["podName"] for member in stage.job.members())
    described = stage.job.kubectl.run("describe", "trainingjob", stage.job.name)
    assert "EccError: " in described
    check_redone_steps(stage, before)


def test_the_job_ends_well_without_a_step_missing_and_leaves_nothing(stage: Stage) -> None:
    """Every step of every life has one loss, whoever computed it and how often."""
    last, left = finish(stage)
    assert left == []
    stage.progress.newest()
    for steps in stage.progress.steps:
        losses: dict[int, float] = {}
        for step in steps:
            assert losses.setdefault(step.step, step.loss) == step.loss, f"step {step.step} came out differently"
    made = {step.step for steps in stage.progress.steps for step in steps}
    assert sorted(made) == list(range(1, last + 1)), "no step is left out"
    assert len(stage.progress.steps) == RANKS
