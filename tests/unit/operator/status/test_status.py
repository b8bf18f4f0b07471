"""Conditions and words: what changes when, and how an incident reads."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.model import Cause, Evidence, Severity
from falcon_core.planning.ski_rental import Candidate, Loss
from falcon_core.recovery.model.evidence import Sampled, SampledPlace
from falcon_core.recovery.model.failure import Fault, StepTaken, StopIncident
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import (
    Applied,
    CommonCause,
    Culprit,
    IterationTimes,
    JobChange,
    Peers,
    SlowdownOnset,
    SlowIncident,
)
from falcon_core.recovery.model.state import Levels, RecoveryState
from falcon_operator.api.common import Condition
from falcon_operator.api.trainingjob import DoneStep, TrainingJobStatus
from falcon_operator.api.trainingrun import ClosedIncident, NodeVerdict
from falcon_operator.base.time_format import parse_duration
from falcon_operator.intent.model.intent import Intent
from falcon_operator.status.conditions import job_changed, set_condition
from falcon_operator.status.diagnoses import describe_slowdown, describe_stop, diagnoses
from falcon_operator.status.events import Look, turning_points
from falcon_operator.status.limits import LINE, TEXT
from tests.unit.recovery.seen import replace

NOON = 1_795_176_250.0  # 2026-11-20T12:04:10Z
POLICY = Policy(job="gpt2", strategies=[("Ignore", None), ("ReplaceNode", None)])
CULPRIT = Culprit(
    rank=2,
    replica=2,
    pod_name="gpt2-2-x7kfd",
    node="node-c",
    slowdown=2.9,
    compute_ns=580_000_000,
    healthy_compute_ns=200_000_000,
    peers_compute_ns=200_000_000,
    wait_ns=10_000_000,
    peers=Peers(wait_ns=390_000_000),
    cause=Cause.CPU_THROTTLING,
    cause_culprit=0.71,
    cause_peers=0.0,
    cause_healthy=0.0,
)
SLOW = SlowIncident(
    id="gpt2-1",
    phase="Located",
    onset=SlowdownOnset(at=NOON, generation=1, iteration=412, reported_iteration=420),
    times=IterationTimes(healthy_ns=231_000_000, slow_ns=612_000_000),
    loss=Loss(seconds=3.0),
    subject=CULPRIT,
    applied=[Applied(strategy="Ignore", at=NOON + 3, loss_seconds=2.0, overhead_seconds=0.0)],
)
ACTED = Applied(strategy="ReplaceNode", at=NOON + 21, loss_seconds=13.3, overhead_seconds=13.0)


def put(conditions: list[Condition], value: bool | None, *, now: float, reason: str = "Why") -> list[Condition]:
    return set_condition(conditions, "Degraded", value, reason, "because", now=now, observed_generation=3)


def test_a_transition_time_moves_with_the_status_alone() -> None:
    first = put([], True, now=NOON)
    again = put(first, True, now=NOON + 60, reason="Other")
    assert again[0].last_transition_time == first[0].last_transition_time == "2026-11-20T12:04:10Z"
    assert (again[0].reason, again[0].observed_generation) == ("Other", 3)
    assert put(again, None, now=NOON + 90)[0].last_transition_time == "2026-11-20T12:05:40Z"


def test_what_was_never_true_is_not_reported_as_false() -> None:
    assert put([], False, now=NOON) == []
    assert put(put([], True, now=NOON), False, now=NOON)[0].status == "False"


def test_an_open_slowdown_reads_like_a_doctors_note() -> None:
    note = describe_slowdown(SLOW, POLICY, Candidate(name="ReplaceNode", overhead_seconds=13.0))
    assert note is not None
    assert note.what == "fail-slow, computation"
    assert note.where == "rank 2 (pod gpt2-2-x7kfd, node node-c)"
    assert note.since == "2026-11-20T12:04:10Z (iteration 412, reported after 9 iterations)"
    assert note.slowdown == "iterations take 2.6x the healthy time; rank 2 takes 2.9x its normal compute time"
    assert note.why.startswith("CPU throttling: its container was throttled in 71 % of periods (peers: 0 %")
    assert note.evidence == (
        "wait/compute per iteration: rank 2 0.01 s/0.58 s, others 0.39 s/0.20 s; rank 2 computed 0.20 s before"
    )
    assert note.done == [
        DoneStep(at="2026-11-20T12:04:13Z", what="no action: so far every repair would cost more than the slowdown")
    ]
    assert note.next == "the node is replaced when the loss reaches a replacement's cost (13 s)"
    assert (note.state, note.cause, note.rank, note.severity) == ("Open", "CpuThrottling", 2, "")


def test_a_rank_that_was_never_well_reads_as_such() -> None:
    never = replace(CULPRIT, slowdown=1.4, healthy_compute_ns=None, cause=Cause.UNKNOWN)
    slow = replace(SLOW, from_start=True, onset_iteration=1, subject=never)
    note = describe_slowdown(slow, POLICY, None)
    assert note is not None
    assert (
        note.slowdown
        == "iterations take 2.6x the healthy time; rank 2 takes 1.4x its peers' compute time, since the first iteration"
    )
    assert note.since == "2026-11-20T12:04:10Z (from the first iteration of generation 1)"


def test_what_all_ranks_have_in_common_is_part_of_the_jobs_slowdown_and_kept_apart_from_the_ranks() -> None:
    shared = replace(SLOW, common_ns=round(0.8 * SLOW.times.healthy_ns))
    note = describe_slowdown(shared, POLICY, None)
    assert note is not None
    assert (
        note.slowdown
        == "iterations take 2.6x the healthy time, 1.8x without this rank; rank 2 takes 2.9x its normal compute time"
    )
    hardly = describe_slowdown(replace(SLOW, common_ns=round(0.04 * SLOW.times.healthy_ns)), POLICY, None)
    assert hardly is not None
    assert hardly.slowdown == "iterations take 2.6x the healthy time; rank 2 takes 2.9x its normal compute time"


def test_what_was_done_and_what_it_cost() -> None:
    replaced = replace(
        SLOW, phase="Checking", applied=[*SLOW.applied, ACTED], switched_at=NOON + 34, replaced_by="spare-1"
    )
    note = describe_slowdown(replaced, POLICY, None)
    assert note is not None
    assert [(step.at[11:19], step.what) for step in note.done] == [
        ("12:04:31", "no action for 21 s, until the loss (13.3 s) reached a replacement's cost (13 s)"),
        ("12:04:31", "node-c evicted from the job; a pod prepared on another node while training went on"),
        ("12:04:44", "replaced by spare-1; all ranks restarted"),
    ]
    helped = ClosedIncident(at=NOON + 40, outcome="Helped", slow=replaced, iteration_ns=233_000_000, cost_seconds=12.0)
    verdict = NodeVerdict(node="node-c", incident="gpt2-1", outcome="Slower", at=NOON + 45, ratio=2.8, fenced=True)
    of_another = replace(verdict, incident="gpt2-2", outcome="AsFast")
    (final,) = diagnoses(Intent(history=[helped], verdicts=[verdict, of_another]), POLICY, None)
    assert final.result == (
        "iteration 233ms at 12:04:50; cost 12 s; node-c fenced: its burn-in took 2.8x the time of its peers'"
    )
    assert (final.state, final.next, final.resolved_at) == ("Resolved", "", "2026-11-20T12:04:50Z")
    passed = replace(verdict, outcome="AsFast", at=NOON + 345, ratio=1.1, fenced=False)
    (final,) = diagnoses(Intent(history=[helped], verdicts=[verdict, passed, of_another]), POLICY, None)
    assert final.result.endswith(
        "node-c was fenced at 12:04:55 (its burn-in took 2.8x the time of its peers');"
        " node-c not fenced: its burn-in was as fast as its peers' (1.1x their time)"
    ), "a node is never fenced and not fenced in one result"
    away = replace(verdict, outcome="NotReady", ratio=None)
    (final,) = diagnoses(Intent(history=[helped], verdicts=[away, passed]), POLICY, None)
    assert "node-c was fenced at 12:04:55 (it was NotReady); node-c not fenced: " in final.result
    useless = replace(helped, outcome="NotHelped", iteration_ns=600_000_000)
    (final,) = diagnoses(Intent(history=[useless]), POLICY, None)
    assert final.result == "did not help: iteration 600ms at 12:04:50, healthy 231ms; cost 12 s"


@pytest.mark.parametrize(
    ("culprit", "words"),
    [
        (replace(CULPRIT, cause=Cause.UNKNOWN), "unknown: "),
        (
            replace(CULPRIT, cause=Cause.CPU_CONTENTION, cause_culprit=0.58, cause_peers=0.14, cause_healthy=None),
            "waited 0.58 s a second (peers: 0.14 s; itself before: unknown), and no quota of its container stopped it:"
            " something else on the node takes its cores, or its process has a limit of its own",
        ),
        (
            replace(CULPRIT, cause=Cause.CPU_CONTENTION, neighbours="of 4.00 cores: batch/etl-5 2.90", node="node-c"),
            "container stopped it: no core of node node-c is idle; of 4.00 cores: batch/etl-5 2.90",
        ),
    ],
)
def test_other_causes(culprit: Culprit, words: str) -> None:
    note = describe_slowdown(replace(SLOW, subject=culprit), POLICY, None)
    assert note is not None
    assert words in note.why
    assert "throttled" not in note.why


OTHER = replace(
    SLOW, id="gpt2-2", slow_ns=400_000_000, subject=replace(CULPRIT, rank=4, node="node-e", slowdown=1.9), applied=[]
)
JOINED = Applied(
    strategy="ReplaceNode", at=NOON + 21, loss_seconds=7.2, overhead_seconds=4.5, spare_seconds=4.5, shares="gpt2-1"
)


def test_a_node_beside_the_first_has_a_note_of_its_own() -> None:
    first, other = reversed(diagnoses(Intent(recovery=RecoveryState(slowdowns=[SLOW, OTHER])), POLICY, None))
    assert (first.id, first.slowdown) == (
        "gpt2-1",
        "iterations take 2.6x the healthy time; rank 2 takes 2.9x its normal compute time",
    )
    assert (other.id, other.slowdown, other.done) == (
        "gpt2-2",
        "iterations would take 1.7x the healthy time with this slowdown alone; rank 4 takes 1.9x its normal compute"
        " time",
        [],
    )
    assert other.next == (
        "when node-c is replaced, this node is evicted from the job in the same restart, if its own loss has reached"
        " the price of a spare"
    )
    checking = replace(SLOW, phase="Checking")
    note = describe_slowdown(OTHER, POLICY, None, checking)
    assert note is not None
    assert note.next == "Falcon judges this node when it is known whether replacing node-c helped"
    note = describe_slowdown(replace(OTHER, blocked="no spare"), POLICY, None, SLOW)
    assert note is not None
    assert note.next == "waits: no spare; tried again as soon as that changes"
    note = describe_slowdown(OTHER, replace(POLICY, strategies=[("Ignore", None)]), None, SLOW)
    assert note is not None
    assert note.next == "no action: spec.mitigation.strategies offers no further strategy"


def test_a_node_that_was_left_in_the_restart_of_another() -> None:
    shared = replace(OTHER, phase="Checking", applied=[JOINED], switched_at=NOON + 34, replaced_by="spare-2")
    helped = ClosedIncident(at=NOON + 40, outcome="Helped", slow=shared, iteration_ns=233_000_000)
    (note,) = diagnoses(Intent(history=[helped]), POLICY, None)
    assert [step.what for step in note.done] == [
        "no action for 21 s, a loss of 7.2 s by itself, which reached the price of a spare (4.5 s); shares the restart"
        " of gpt2-1",
        "node-e evicted from the job; a pod prepared on another node while training went on",
        "replaced by spare-2; all ranks restarted",
    ]
    assert (note.slowdown, note.result) == (
        "iterations would take 1.7x the healthy time with this slowdown alone; rank 4 takes 1.9x its normal compute"
        " time",
        "iteration 233ms at 12:04:50",
    )


def test_nobody_named_no_note() -> None:
    assert describe_slowdown(replace(SLOW, subject=None), POLICY, None) is None


def test_a_slow_rank_against_which_the_spec_has_nothing_is_endured() -> None:
    policy = Policy(job="gpt2", strategies=[("Ignore", None), ("SwapNodes", None)])
    note = describe_slowdown(SLOW, policy, None)
    assert note is not None
    assert note.next == "no action: spec.mitigation.strategies offers no further strategy"


def test_the_newest_incident_comes_first_open_or_over() -> None:
    closed = [
        ClosedIncident(at=NOON, outcome="Relieved", slow=replace(SLOW, id=f"gpt2-{number}")) for number in (9, 10)
    ]
    intent = Intent(recovery=RecoveryState(slowdowns=[replace(SLOW, id="gpt2-11")]), history=closed)
    assert [note.id for note in diagnoses(intent, POLICY, None)] == ["gpt2-11", "gpt2-10", "gpt2-9"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1h", 3600), ("500ms", 0.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "1", "h", "1d", "1h ", "-1s"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="write for example"):
        parse_duration(text)


CHANGE = JobChange(
    since=NOON,
    generation=2,
    iteration=412,
    before_ns=250_000_000,
    after_ns=300_000_000,
    peak_ns=300_000_000,
    reference_ns=250_000_000,
    period_calls=4,
    growth=[1.25],
)


def test_a_change_of_the_job_reads_as_nobodys_fault() -> None:
    finding = job_changed(CHANGE)
    assert (finding.value, finding.reason) == (True, "AllRanksAlike")
    assert finding.message == (
        "since 2026-11-20T12:04:10Z (iteration 412 of generation 2) iterations take 300ms instead of 250ms (1.20x);"
        " all ranks compute longer by the same factor, so the job itself has changed, and no node or link is at fault"
        " (ranks that wait for one of them where Falcon sees no call, in a loop that never sleeps or on a device, look"
        " the same)"
    )
    assert job_changed(replace(CHANGE, recurring=True)).reason == "Recurs"
    assert job_changed(None).value is False


def test_a_cause_outside_of_the_job_is_no_change_of_it() -> None:
    outside = CommonCause(cause=Cause.CPU_CONTENTION, counter=0.8, healthy=0.02)
    finding = job_changed(replace(CHANGE, outside=outside))
    assert (finding.value, finding.reason) == (False, "CommonCause")
    assert "ready to run but waited 0.80 s a second (0.02 s before), and no quota" in finding.message


def changes_reported(before: JobChange | None, after: JobChange | None) -> list[str]:
    looks = [
        Look(Intent(recovery=RecoveryState(levels=Levels(change=change))), TrainingJobStatus())
        for change in (before, after)
    ]
    return [event.reason for event in turning_points(*looks)]


def test_a_change_of_the_job_makes_one_event() -> None:
    later = replace(CHANGE, since=NOON + 60, before_ns=300_000_000, after_ns=360_000_000)
    assert changes_reported(None, CHANGE) == ["JobChanged"]
    assert changes_reported(CHANGE, later) == ["JobChanged"], "another step"
    assert changes_reported(CHANGE, CHANGE) == []
    assert changes_reported(CHANGE, replace(CHANGE, after_ns=280_000_000)) == [], "the level falls"
    assert changes_reported(CHANGE, None) == []
    assert changes_reported(None, replace(CHANGE, recurring=True)) == []


CANDIDATE = Candidate(name="ReplaceNode", overhead_seconds=13.0)
UNEXPLAINED = replace(CULPRIT, cause=Cause.UNKNOWN, work="Hidden")


def described(evidence: Evidence, policy: Policy = POLICY, culprit: Culprit = UNEXPLAINED, **fields: Any) -> Any:
    note = describe_slowdown(replace(SLOW, subject=culprit, evidence=evidence, **fields), policy, CANDIDATE)
    assert note is not None
    return note


def test_a_rank_whose_work_may_move_is_an_imbalance_and_the_note_says_what_is_missing() -> None:
    staged = replace(POLICY, stages=2, world_size=4)
    note = described(Evidence.WORK_MAY_MOVE, staged, stay_iterations=1500)
    assert (note.what, note.cause, note.state) == ("fail-slow, imbalance", "Imbalance", "Open")
    assert note.why == (
        "imbalance: rank 2 (pipeline stage 2 of 2) may have more work than its peers: how much a rank of this job has"
        " to do depends on the data, and no counter shows another cause"
    )
    assert note.next == (
        "not replaced: rank 2 may be slow because it has more work, as work moves between the ranks of this job;"
        " node-c is replaced when the slowdown has stayed there for 1500 iterations, or a counter shows a cause; to"
        " replace it now, set spec.mitigation.confidence: Low"
    )
    assert "how long that is, is not known yet" in described(Evidence.WORK_MAY_MOVE).next
    constant = described(Evidence.WORK_MAY_MOVE, culprit=replace(UNEXPLAINED, work="Fixed"))
    assert "moved from node to node in this job before" in constant.why


def test_other_doubts() -> None:
    note = described(Evidence.SINCE_START)
    assert (note.what, note.cause) == ("fail-slow, computation", "Unknown")
    assert note.next.startswith("not replaced: rank 2 was never seen healthy on node-c")
    note = described(Evidence.FOLLOWS_THE_ROLE)
    assert note.cause == "Imbalance"
    assert "as slow on another node" in note.why
    assert note.next.startswith("not replaced: rank 2 was as slow on its previous node")


def test_without_doubt_or_with_low_confidence_the_price_decides() -> None:
    priced = "the node is replaced when the loss reaches a replacement's cost (13 s)"
    assert described(Evidence.WAS_HEALTHY_HERE).next == priced
    assert described(Evidence.STAYED_LONGER).what == "fail-slow, computation"
    assert described(Evidence.WORK_MAY_MOVE, replace(POLICY, confidence="Low")).next == priced
    endured = replace(POLICY, strategies=[("Ignore", None)])
    note = describe_slowdown(replace(SLOW, evidence=Evidence.SINCE_START), endured, None)
    assert note is not None
    assert note.next.startswith("no action: ")


@pytest.mark.parametrize("evidence", Evidence)
def test_what_is_missing_fits_into_the_status(evidence: Evidence) -> None:
    long = replace(UNEXPLAINED, rank=99_999, node="n" * 63)
    note = described(evidence, culprit=long, stay_iterations=99_999_999)
    assert len(note.next) <= LINE
    assert len(note.why) <= TEXT


def test_an_action_that_is_due_early_says_why() -> None:
    early = Candidate(name="ReplaceNode", overhead_seconds=13.0, due_share=0.5, rest_seconds=1500.0, seen=12)
    note = describe_slowdown(SLOW, POLICY, early)
    assert note is not None
    assert note.next == (
        "the node is replaced when the loss reaches 50 % of a replacement's cost (13 s); that is"
        " earlier than usual, because 12 slowdowns of this cause and depth were seen in this job, and they"
        " suggest that this one will last about 25 min more"
    )
    note = describe_slowdown(SLOW, POLICY, replace(early, seen_elsewhere=9))
    assert note is not None
    assert "because 12 slowdowns of this cause and depth were seen in this cluster, 3 of them in this job," in note.next
    acted = replace(SLOW, applied=[replace(ACTED, loss_seconds=6.6, due_share=0.5)])
    note = describe_slowdown(acted, POLICY, early)
    assert note is not None
    assert "until the loss (6.6 s) reached 50 % of a replacement's cost (13 s)" in note.done[0].what


def test_collections_are_named_with_what_shortens_them() -> None:
    figures = {"cause_culprit": 0.31, "cause_peers": 0.0, "cause_healthy": 0.01}
    note = described(Evidence.PROGRAM, culprit=replace(CULPRIT, cause=Cause.GARBAGE_COLLECTION, **figures))
    assert note.why == (
        "garbage collection: Python's collector stopped it for 0.31 s a second (peers: 0.00 s; itself before: 0.01 s),"
        " and all ranks waited"
    )
    assert "the program itself is the cause" in note.next
    assert "gc.freeze()" in note.next


def test_late_data_are_named_with_the_place_of_the_program() -> None:
    places = [
        SampledPlace(frames=["_try_get_data (dataloader.py:1286)", "main (train.py:35)"], samples=9),
        SampledPlace(frames=["f (g.py:1)"], samples=3),
    ]
    culprit = replace(CULPRIT, cause=Cause.LATE_DATA, cause_culprit=0.84, samples=Sampled(taken=12, places=places))
    note = described(Evidence.WAS_HEALTHY_HERE, culprit=culprit)
    assert note.why.startswith("late data: it loses its time between two of its calls and hardly anywhere else")
    assert "(84 %; a slow device, which is slow everywhere, gives 0 %)" in note.why
    assert note.evidence.endswith(
        "; of 12 samples of its main thread's stack: 9 times in _try_get_data (dataloader.py:1286), called by main"
        " (train.py:35); 3 times in f (g.py:1)"
    )


def test_a_step_that_only_a_newer_operator_knows_is_shown_by_its_name() -> None:
    fault = Fault(
        severity=Severity.SEV2, cause=Cause.PROCESS_KILLED, text="was killed", replica=1, pod_name="gpt2-1", node="n"
    )
    stop = StopIncident(
        id="gpt2-1",
        fault=fault,
        generation=1,
        since=100.0,
        detected_at=101.0,
        done=[StepTaken(at=102.0, what="Freeze", generation=2), StepTaken(at=103.0, what="Restart", generation=3)],
    )
    freeze, restart = describe_stop(stop, POLICY).done
    assert freeze.what == "Freeze (generation 2)"
    assert restart.what == "all ranks restarted in their pods (generation 3)"
