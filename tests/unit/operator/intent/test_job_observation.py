"""Which parts of a report count, and for how long."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_core.model import Cause
from falcon_core.recovery.failstop.faults import rank_fault
from falcon_core.recovery.model.membership import Member, Membership, Replacement
from falcon_core.recovery.model.observation import NOTHING_SENT, Look, RankSeen
from falcon_core.recovery.model.policy import Policy
from falcon_core.times import FRESH_SECONDS
from falcon_core.wire.launcher.launch import FirstEnd, LaunchRank, LaunchStandby, LaunchStatus
from falcon_core.wire.launcher.printed import Printed, RankOutput
from falcon_core.wire.reporting.messages import RankSignals, Summary
from falcon_operator.api.common import ObjectMeta
from falcon_operator.api.trainingjob import TrainingJob, TrainingJobSpec
from falcon_operator.base.ports import ContainerView, JobReports, NodeView, PodSettings, PodView, Received
from falcon_operator.intent.model.policy import policy_of
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.intent.observation.job_observation import observe
from falcon_operator.manifests.instrument import AGENT_CONTAINER

NOW, MONOTONIC = 1_000_000.0, 500.0
STARTED = LaunchRank(local_rank=0, rank=0, pid=7, state="Running", started_unix_ns=int((NOW - 60) * 1e9))
SIGNALS = RankSignals(
    rank=0,
    tracking="Tracking",
    iterations=50,
    iteration_ns=[250_000_000] * 16,
    last_call_unix_ns=int((NOW - 1) * 1e9),
    hang_deadline_ns=int(10e9),
)
replace = msgspec.structs.replace
SETTINGS = PodSettings(agent_image="a", gateways="g:1")


def snapshot(
    *,
    launch: dict[str, Any] | None = None,
    signals: dict[str, Any] | None = None,
    age_seconds: float = 0.5,
    clock_seconds: float | None = None,
    reports: dict[str, Any] | None = None,
    pod: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    ended: LaunchStatus | None = None,
) -> Snapshot:
    """Return a job of one pod and one rank that runs and reports; the arguments name what is different."""
    status = replace(LaunchStatus(generation=3, dead_below=3, state="Running", ranks=[STARTED]), **(launch or {}))
    summary = Summary(
        pod_uid="p",
        sequence=1,
        unix_ns=int(NOW * 1e9),
        generation=status.generation,
        launch=status,
        ended=ended,
        ranks=[replace(SIGNALS, **(signals or {}))],
    )
    template = {"spec": {"containers": [{"name": "t", "image": "x", "command": ["python"]}]}}
    view = PodView(namespace="ml", name="gpt2-0-a", uid="p", node="node-a", phase="Running")
    job_reports = JobReports(
        summaries={
            "p": Received(summary=summary, at_seconds=MONOTONIC - age_seconds, clock_seconds=clock_seconds),
        },
        alive=frozenset({"p"}),
        session_healthy_since_seconds=0.0,
    )
    return Snapshot(
        job=TrainingJob(
            metadata=ObjectMeta(name="gpt2", namespace="ml", uid="u"),
            spec=msgspec.convert({"replicas": 1, "template": template, **(spec or {})}, TrainingJobSpec),
        ),
        pods=[replace(view, **(pod or {}))],
        nodes={"node-a": NodeView(name="node-a")},
        reports=replace(job_reports, **(reports or {})),
        settings=SETTINGS,
        now=NOW,
        monotonic=MONOTONIC,
        phase_seen_at=MONOTONIC - 30,
    )


def members(phase: Any = "Run", number: int = 3) -> Membership:
    member = Member(replica=0, pod_name="gpt2-0-a", pod_uid="p", node="node-a")
    return Membership(generation=number, phase=phase, since=NOW - 30, members=[member])


def rank(snap: Snapshot, phase: Any = "Run", number: int = 3) -> RankSeen:
    return observe(snap, members(phase, number)).ranks[0]


def test_a_rank_that_trains() -> None:
    seen = rank(snapshot())
    assert (seen.process, seen.sent.iterations, seen.tracked, seen.fresh, seen.stalled) == (
        "Running",
        50,
        True,
        True,
        False,
    )
    assert observe(snapshot(), members()).running_seconds == 30.0


def test_another_generations_report_says_nothing() -> None:
    assert rank(snapshot(launch={"generation": 2})).process == "Unknown"
    assert rank(snapshot(launch={"generation": 2})).sent.iterations == 0
    assert rank(snapshot(launch={"generation": 2}), "Stop").process == "Running", (
        "while the job is stopped, generation 2 is the generation to look at"
    )


def test_ends_that_were_ordered_are_none() -> None:
    killed = replace(STARTED, state="Exited", signal=15)
    assert rank(snapshot(launch={"state": "Stopped", "ranks": [killed]})).process == "Unknown"
    assert rank(snapshot(launch={"state": "Exited", "ranks": [killed]})).process == "Ended"


def test_the_ring_of_a_process_that_is_gone_says_nothing_of_the_next() -> None:
    seen = rank(snapshot(signals={"last_call_unix_ns": int((NOW - 61) * 1e9)}))
    assert (seen.process, seen.sent.iterations, seen.sent.iteration_ns) == ("Running", 0, [])


def test_age_and_silence() -> None:
    assert not rank(snapshot(age_seconds=FRESH_SECONDS + 1)).fresh
    quiet = {"last_call_unix_ns": int((NOW - 9.8) * 1e9)}
    assert not rank(snapshot(signals=quiet, age_seconds=0.5)).stalled, "its agent would have said so"
    assert rank(snapshot(signals=quiet, age_seconds=0.5)).silent_seconds == pytest.approx(10.3)
    silent = {"last_call_unix_ns": int((NOW - 10.1) * 1e9)}
    assert rank(snapshot(signals=silent, age_seconds=0.5)).stalled
    assert not rank(snapshot(signals=silent, age_seconds=FRESH_SECONDS + 1)).stalled, "an old report proves nothing"


def test_liveness_needs_a_session_that_hears() -> None:
    def alive(**reports: Any) -> bool | None:
        return observe(snapshot(reports=reports), members()).members[0].alive

    assert alive() is True
    assert alive(session_healthy_since_seconds=None) is None
    gone = {"alive": frozenset(), "gone_since_seconds": {"p": 490.0}}
    assert alive(**gone) is False
    assert alive(alive=frozenset()) is None, "its gateway is lost"
    assert alive(alive=frozenset(), summaries={}) is None


def test_the_life_of_a_pod() -> None:
    def state(**pod: Any) -> str:
        return observe(snapshot(pod=pod), members()).members[0].pod

    def trainer(code: int) -> dict[str, ContainerView]:
        return {"t": ContainerView(name="t", exit_code=code, exit_reason="OOMKilled")}

    assert state() == "Present"
    assert state(node="") == "Awaited"
    assert state(deleting=True) == "Deleting"
    assert state(phase="Failed", reason="Evicted") == "Ended"
    assert state(containers=trainer(137)) == "Ended"
    assert state(containers=trainer(0)) == "Present", "all its ranks ended without an error"
    assert state(name="another") == "Gone"


def test_a_prepared_pod_that_ends_before_it_takes_part_is_lost() -> None:
    move = Replacement(
        replica=0,
        pod_name="gpt2-0-b",
        node="node-b",
        old_pod_name="gpt2-0-a",
        old_pod_uid="p",
        old_node="node-a",
        prepared=True,
        at=NOW - 9,
    )
    ended = {"t": ContainerView(name="t", exit_code=2, exit_reason="Error")}
    snap = snapshot(pod={"name": "gpt2-0-b", "uid": "q", "node": "node-b", "containers": ended})
    seen = observe(snap, replace(members(), replacements=[move])).prepared[0]
    assert (seen.lost, seen.ready, seen.message) == (True, False, "Error 2")


@pytest.mark.parametrize(
    ("code", "reason", "expected"), [(137, "OOMKilled", True), (1, "OOMKilled", False), (137, "Error", False)]
)
def test_a_container_that_the_kernel_ended_for_memory(code: int, reason: str, expected: bool) -> None:
    ended = {"t": ContainerView(name="t", exit_code=code, exit_reason=reason)}
    member = observe(snapshot(pod={"containers": ended}), members()).members[0]
    assert (member.pod, member.end.cause is Cause.OUT_OF_MEMORY) == ("Ended", expected)


@pytest.mark.parametrize(
    ("kills", "before", "expected"), [(0, 0, True), (None, None, True), (1, 0, False), (0, 2, False)]
)
def test_a_kill_for_memory_that_the_container_has_outlived_does_not_explain_its_end(
    kills: int | None, before: int | None, expected: bool
) -> None:
    ended = {"t": ContainerView(name="t", exit_code=137, exit_reason="OOMKilled")}
    snap = snapshot(launch={"oom_kills": kills, "oom_kills_before": before}, pod={"containers": ended})
    member = observe(snap, members()).members[0]
    assert (member.end.cause is Cause.OUT_OF_MEMORY, member.end.text) == (
        expected,
        "OOMKilled 137" if expected else "exit 137",
    )


def test_a_launcher_of_the_users_own_speaks_for_all_its_ranks() -> None:
    ended = replace(STARTED, state="Exited", exit_code=1)
    snap = snapshot(launch={"state": "Exited", "ranks": [ended]}, spec={"launcher": "Own", "procsPerReplica": 4})
    assert [seen.process for seen in observe(snap, members()).ranks] == ["Ended"] * 4


@pytest.mark.parametrize(
    ("first", "failed"),
    [
        (FirstEnd(rank=2, local_rank=2, signal=9), [2]),
        (FirstEnd(rank=6, local_rank=2, signal=9), [2]),  # counted otherwise than by the plan
        (FirstEnd(rank=2, signal=9), [2]),
        (FirstEnd(rank=6, signal=9), [0, 1, 2, 3]),  # a rank of another pod
        (FirstEnd(rank=6, local_rank=4, signal=9), [0, 1, 2, 3]),
        (FirstEnd(rank=2, local_rank=2, exit_code=0), [0, 1, 2, 3]),
        (None, [0, 1, 2, 3]),
    ],
)
def test_the_rank_that_a_launcher_of_the_users_own_names_has_failed_first(
    first: FirstEnd | None, failed: list[int]
) -> None:
    ended = replace(STARTED, state="Exited", exit_code=1, last_words="ValueError: bad", first_end=first)
    spec = {"launcher": "Own", "procsPerReplica": 4}
    obs = observe(snapshot(launch={"state": "Exited", "ranks": [ended]}, spec=spec), members())
    assert [seen.process for seen in obs.ranks] == ["Ended"] * 4
    assert [seen.rank for seen in obs.ranks if seen.exit_code or seen.signal] == failed
    fault = rank_fault(Look(obs, Policy(job="gpt2", strategies=[])))
    assert fault is not None
    assert (fault.rank, fault.cause) == (failed[0], Cause.PROCESS_KILLED if failed == [2] else Cause.PROCESS_FAILED)


def test_the_policy_is_the_specs() -> None:
    rules = policy_of(
        snapshot(
            spec={
                "procsPerReplica": 4,
                "detection": {"medianPercent": 200, "verifyPercent": 20},
                "mitigation": {
                    "mode": "Observe",
                    "confidence": "Low",
                    "strategies": [{"type": "ReplaceNode", "overheadSeconds": 30}],
                },
                "recovery": {"restarts": 1, "window": "30m"},
            }
        ).job,
        SETTINGS,
    )
    assert (rules.median_factor, rules.verify, rules.enforce, rules.restarts, rules.window_seconds) == (
        2.0,
        0.2,
        False,
        1,
        1800,
    )
    assert (rules.confidence, rules.strategies, rules.world_size) == ("Low", [("ReplaceNode", 30.0)], 4)
    assert policy_of(snapshot().job, SETTINGS).confidence == "High"


@pytest.mark.parametrize(
    ("standby", "made"),
    [
        (None, False),
        (LaunchStandby(ready=0, wanted=2), True),
        (LaunchStandby(ready=1, wanted=2, why="too little memory is free"), False),
        (LaunchStandby(ready=2, wanted=2), False),
    ],
)
def test_standbys_that_are_being_made_are_seen(standby: LaunchStandby | None, made: bool) -> None:
    snap = snapshot(launch={"standby": standby})
    assert observe(snap, members()).standbys_made is made
    assert observe(snap, members("Stop")).standbys_made is False


def test_the_clock_of_the_leader_before_counts_for_nothing() -> None:
    """Check ages under another leader's clock, whose time of day may have been a minute behind or ahead.

    An age counts only from what this process has seen itself.
    """
    snap = snapshot(launch={"generation": 2, "dead_below": 0})
    ahead = replace(snap, now=NOW + 60, phase_seen_at=MONOTONIC - 1)
    assert observe(ahead, members("Stop")).members[0].launcher.unacknowledged_seconds == 1.0
    assert observe(replace(snap, phase_seen_at=None), members()).running_seconds == 0.0


@pytest.mark.parametrize(("behind_seconds", "corrected"), [(7.0, 7.0), (-7.0, -7.0), (0.4, 0.0)])
def test_ends_are_told_by_the_operators_clock_where_a_nodes_differs(behind_seconds: float, corrected: float) -> None:
    ended = replace(STARTED, state="Exited", exit_code=1, ended_unix_ns=int((NOW - 20) * 1e9))
    clock = MONOTONIC - (NOW - behind_seconds)
    agent = ContainerView(name=AGENT_CONTAINER, ended_unix=NOW - 20)
    snap = snapshot(launch={"ranks": [ended]}, clock_seconds=clock, pod={"containers": {AGENT_CONTAINER: agent}})
    seen = observe(snap, members())
    assert seen.ranks[0].ended_at == pytest.approx(NOW - 20 + corrected)
    assert seen.members[0].agent_ended_seconds == pytest.approx(20 - corrected)


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ({"waiting_reason": "CrashLoopBackOff"}, True),
        ({"exit_code": 137}, True),
        ({"waiting_reason": "ContainerCreating"}, False),
        ({"running": True}, False),
        ({}, False),
    ],
    ids=["held back", "ended, and not yet said to be held back", "is being made", "runs again", "nothing is known"],
)
def test_an_agent_that_does_not_run_by_its_kubelets_word(container: dict[str, Any], expected: bool) -> None:
    agent = ContainerView(name=AGENT_CONTAINER, ended_unix=NOW - 20, **container)
    seen = observe(snapshot(pod={"containers": {AGENT_CONTAINER: agent}}), members())
    assert seen.members[0].agent_ended is expected


def test_ends_that_are_reported_with_the_order_to_stop() -> None:
    """Check that a report of the next generation still shows how the processes before it failed, and no more."""
    killed = replace(STARTED, state="Exited", signal=9, ended_unix_ns=int((NOW - 2) * 1e9))
    ended = LaunchStatus(generation=1, dead_below=1, state="Exited", ranks=[killed])
    snap = snapshot(launch={"generation": 2, "dead_below": 2, "state": "Stopped"}, ended=ended)
    seen = observe(snap, members("Stop", 2))
    assert (seen.ranks[0].process, seen.ranks[0].signal) == ("Ended", 9)
    assert seen.ranks[0].sent == NOTHING_SENT
    assert observe(snap, members("Run", 2)).ranks[0].process == "Unknown"


def test_what_a_rank_has_printed_comes_with_it_and_with_no_other() -> None:
    printed = [Printed(int(NOW * 1e9), "ValueError: bad", raised=True)]
    snap = snapshot()
    received = snap.reports.summaries["p"]
    for local_rank, expected in ((0, printed), (1, [])):
        summary = replace(received.summary, output=[RankOutput(local_rank, printed)])
        reports = replace(snap.reports, summaries={"p": replace(received, summary=summary)})
        (seen,) = observe(replace(snap, reports=reports), members()).ranks
        assert (list(seen.printed), seen.alone) == (expected, True)


@pytest.mark.parametrize(
    ("behind_seconds", "procs", "expected"), [(0.0, 1, NOW - 1), (7.0, 1, NOW + 6), (0.0, 2, None)]
)
def test_a_rank_of_its_own_process_has_the_time_of_what_nobody_caught_by_the_operators_clock(
    behind_seconds: float, procs: int, expected: float | None
) -> None:
    at = int((NOW - 1) * 1e9)
    told = RankOutput(0, [Printed(at, "ValueError: bad", raised=True)], uncaught_unix_ns=at)
    snap = snapshot(clock_seconds=MONOTONIC - (NOW - behind_seconds), spec={"procsPerReplica": procs})
    received = snap.reports.summaries["p"]
    summary = replace(received.summary, output=[told])
    reports = replace(snap.reports, summaries={"p": replace(received, summary=summary)})
    assert observe(replace(snap, reports=reports), members()).ranks[0].uncaught_at == expected
