"""Of which ranks the operator asks for detail."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.detail_requests import wanted_detail
from falcon_core.recovery.history.detail_schedule import OWN_JUDGEMENT_SECONDS, TURN_SECONDS
from falcon_core.recovery.model.observation import Look, Observation, RankSeen
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import Culprit, IterationTimes, SlowdownOnset, SlowIncident
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.treatments import SlowPair
from falcon_core.topology.parallelism import Parallelism
from falcon_core.wire.reporting.messages import MAX_DETAILED, RankSignals
from tests.unit.recovery.seen import member, replace

ONSET_AT = 1_000_000.0
POLICY = Policy(job="j", strategies=[])
CULPRIT = Culprit(rank=0, replica=0, pod_name="p", node="n", slowdown=2.0, compute_ns=2, peers_compute_ns=1)


def job(ranks: int, after: float, *, running: bool = True) -> Observation:
    seen = [
        RankSeen(rank=number, replica=number, sent=RankSignals(rank=number, tracking="Tracking", iterations=9))
        for number in range(ranks)
    ]
    return Observation(now=ONSET_AT + after, generation=1, running=running, members=[], ranks=seen)


def slow(culprit: int | None = None) -> RecoveryState:
    incident = SlowIncident(
        id="j-1",
        phase="Detected",
        onset=SlowdownOnset(at=ONSET_AT, generation=1, iteration=7, reported_iteration=12),
        times=IterationTimes(healthy_ns=1, slow_ns=2),
        loss=Loss(generation=1),
    )
    named = None if culprit is None else msgspec.structs.replace(CULPRIT, rank=culprit)
    return RecoveryState(slowdowns=[msgspec.structs.replace(incident, subject=named)])


@pytest.mark.parametrize(
    ("state", "obs", "policy"),
    [
        (RecoveryState(), job(4, 60), POLICY),
        (slow(), job(4, OWN_JUDGEMENT_SECONDS - 1), POLICY),
        (slow(), job(4, 60, running=False), POLICY),
        (slow(), job(4, 60), msgspec.structs.replace(POLICY, watch=False)),
    ],
    ids=["healthy", "those that know themselves come forward first", "between generations", "not watched"],
)
def test_nobody_is_asked(state: RecoveryState, obs: Observation, policy: Policy) -> None:
    assert wanted_detail(state, Look(obs, policy)) == []


def test_all_ranks_of_a_small_job_are_asked_while_nobody_is_named() -> None:
    assert wanted_detail(slow(), Look(job(4, 60), POLICY)) == [0, 1, 2, 3]


def test_the_culprit_alone_is_asked_once_it_is_named() -> None:
    assert wanted_detail(slow(culprit=3), Look(job(4, 60), POLICY)) == [3]


def test_all_ranks_are_asked_where_what_they_send_decides_over_an_exchange() -> None:
    """A slow link is known between two of the job's nodes, and slow ranks may exchange their roles."""
    pair = SlowPair(nodes=["node-0", "node-1"], at=ONSET_AT)
    state = replace(slow(culprit=3), slow_pairs=[pair])
    obs = msgspec.structs.replace(job(4, 60), members=[member(number) for number in range(4)])
    staged = Policy(job="j", strategies=[("SwapNodes", None)], layout=Parallelism(data=2, pipeline=2))
    assert wanted_detail(state, Look(obs, staged)) == [0, 1, 2, 3]
    assert wanted_detail(state, Look(obs, msgspec.structs.replace(staged, strategies=[]))) == [3]
    assert wanted_detail(state, Look(obs, msgspec.structs.replace(staged, layout=Parallelism(data=4)))) == [3]


def test_the_ranks_of_a_large_job_are_asked_in_turns() -> None:
    ranks = 3 * MAX_DETAILED + 5
    turns = [wanted_detail(slow(), Look(job(ranks, 60 + turn * TURN_SECONDS), POLICY)) for turn in range(4)]
    assert max(map(len, turns)) == MAX_DETAILED
    assert sorted(itertools.chain.from_iterable(turns)) == list(range(ranks))
    within = [wanted_detail(slow(), Look(job(ranks, 60 + second), POLICY)) for second in (0, TURN_SECONDS - 1)]
    assert within[0] == within[1], "a turn lasts"
