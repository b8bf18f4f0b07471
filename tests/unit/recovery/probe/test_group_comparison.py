"""Which group's transfers are suspected beside those of its kind, when that is looked at, and what ends a suspicion."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.recovery import Look, detail_requests, mitigation_ladder
from falcon_core.recovery.model.observation import Observation
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.probe import Pauses, Probed
from falcon_core.recovery.model.state import RecoveryState, Suspicions
from falcon_core.recovery.model.suspects import Compared
from falcon_core.recovery.probe import group_comparison, probe_controller
from falcon_core.topology.parallelism import Parallelism
from falcon_core.wire.reporting.messages import CommSignals, Onset
from falcon_core.wire.ring import Op
from tests.unit.recovery.pauses import answers, measured, ready
from tests.unit.recovery.seen import MS, NOW, four_pods, member, rank, replace
from tests.unit.recovery.strategies import test_swap_for_link

POLICY = replace(test_swap_for_link.POLICY, pause_budget=0.01)
WORLD, DATA = 1, 2  # ids that each process gives its communicators
MB = 1 << 20
ITERATION = 250 * MS
CERTAIN = RecoveryState(
    suspicions=Suspicions(
        compared=Compared(generation=1, iteration=50, comm="data group of rank 0", reports=3, counted_iteration=98)
    ),
    pauses=Pauses(since=NOW - 3600),
)


def comms(at: int, data_ns: list[int] | None, size: int = 40 * MB, op: Op = Op.ALL_REDUCE) -> list[CommSignals]:
    """Return what a rank's agent says, if its calls in its data group take so long: the first, and the rest."""
    return [
        CommSignals(comm=WORLD, size=4, place=at, op=Op.ALL_REDUCE, link_bytes=8, healthy_ns=[MS]),
        CommSignals(comm=DATA, size=2, place=at % 2, op=op, link_bytes=size, healthy_ns=data_ns or []),
    ]


TIMES: dict[int, list[int] | None] = {0: [90 * MS, 60 * MS], 1: [30 * MS, 90 * MS], 2: [5 * MS, 45 * MS]}


def job(times: dict[int, list[int] | None] | None = None, *, iterations: int = 100, **fields: Any) -> Observation:
    """Return two pipeline stages of two ranks: by TIMES 90 ms of transfers in the first data group, 50 in the other.

    The last member to arrive in the first call takes 30 ms for it, and in the rest 60 ms.
    """
    known = {**TIMES, 3: [20 * MS, 45 * MS], **(times or {})}
    ranks = [
        rank(at, iterations=iterations, iteration_ns=[ITERATION] * 16, comms=comms(at, known[at])) for at in range(4)
    ]
    return four_pods(fields.pop("ranks", ranks), **fields)


def seen(obs: Observation, state: RecoveryState | None = None, policy: Policy = POLICY) -> RecoveryState:
    return group_comparison.look(state or RecoveryState(), Look(obs, policy))


def slowest(obs: Observation, policy: Policy) -> group_comparison.Slower | None:
    """Return the group that is suspected; None where no group is, or not all is known."""
    known = group_comparison._known_groups(Look(obs, policy))
    return None if known is None else group_comparison.slowest(known, Look(obs, policy))


def test_the_transfer_is_what_the_member_takes_that_arrives_last_call_by_call() -> None:
    found = slowest(job(), POLICY)
    assert found is not None
    assert (found.comm, found.members, found.siblings) == ("data group of rank 0", (0, 1), 1)
    assert found.excess_ns == (30 + 60 - 5 - 45) * MS


@pytest.mark.parametrize(
    ("obs", "policy"),
    [
        (job({0: [30 * MS, 45 * MS], 1: [5 * MS, 49 * MS]}), POLICY),  # 1.08 times the other's
        (job(), replace(POLICY, suspicion=1.9)),
        (job({0: [5 * MS, 65 * MS], 1: [5 * MS, 65 * MS]}), POLICY),  # an iteration would be a twelfth shorter
        (job({1: None}), POLICY),  # a member does not say it
        (job(ranks=[rank(at, comms=comms(at, TIMES.get(at), size=(at // 2 + 1) * MB)) for at in range(4)]), POLICY),
        (job(members=[member(at, node=f"node-{at // 2}") for at in range(4)]), POLICY),  # no link between nodes
        (job(), replace(POLICY, layout=None)),
    ],
    ids=["hardly", "by the spec", "hardly worth it", "unknown", "other bytes", "within a node", "layout unknown"],
)
def test_what_is_no_reason_for_a_suspicion(obs: Observation, policy: Policy) -> None:
    assert slowest(obs, policy) is None


def test_a_member_that_waits_and_does_not_know_for_what_is_of_the_same_kind() -> None:
    ranks = [rank(at, comms=comms(at, TIMES.get(at, [20 * MS, 45 * MS]), op=Op(at % 2))) for at in range(4)]
    found = slowest(job(ranks=ranks), POLICY)
    assert found is not None
    assert (found.comm, found.op) == ("data group of rank 0", 1)


def test_the_threshold_is_the_specs() -> None:
    assert slowest(job(), replace(POLICY, suspicion=1.7)) is not None


def test_three_reports_that_hold_no_iteration_twice_make_a_suspicion() -> None:
    state = RecoveryState()
    for iterations, reports in ((60, 1), (75, 1), (76, 2), (80, 2), (92, 3)):
        state = seen(job(iterations=iterations), state)
        assert state.suspicions.compared is not None
        assert state.suspicions.compared.reports == reports
        assert (group_comparison.suspicion(state, Look(job(iterations=iterations), POLICY)) is not None) == (
            reports == 3
        )


ALIKE: dict[int, list[int] | None] = {0: [5 * MS, 45 * MS], 1: [5 * MS, 45 * MS]}
OTHER: dict[int, list[int] | None] = {2: [200 * MS, 5 * MS], 3: [90 * MS, 150 * MS]}


def test_where_groups_are_alike_at_the_first_look_nobody_is_asked_any_more() -> None:
    state = seen(job(ALIKE))
    assert state.suspicions.compared == Compared(generation=1, iteration=100, over=True)
    assert seen(job(), state) == state
    again = seen(job(generation=2), state)
    assert again.suspicions.compared == Compared(
        generation=2, iteration=100, comm="data group of rank 0", reports=1, counted_iteration=100
    )


@pytest.mark.parametrize("times", [ALIKE, OTHER], ids=["alike", "the other group"])
def test_a_group_that_is_not_slower_at_every_look_begins_anew_for_a_while(times: dict[int, list[int] | None]) -> None:
    state = seen(job(times, iterations=76), seen(job(iterations=60)))
    assert state.suspicions.compared is not None
    assert (state.suspicions.compared.comm, state.suspicions.compared.reports, state.suspicions.compared.over) == (
        "",
        0,
        False,
    )
    late = seen(job(times, iterations=260), seen(job(iterations=80), state))
    assert late.suspicions.compared is not None
    assert late.suspicions.compared.over


def test_a_look_at_which_not_all_is_known_changes_nothing() -> None:
    state = seen(job(iterations=60))
    assert seen(job({1: None}), state) == state


@pytest.mark.parametrize(
    ("state", "obs", "policy"),
    [
        ({}, job(iterations=49), POLICY),
        ({}, job(running=False), POLICY),
        ({"slowdowns": [group_comparison.suspicion(CERTAIN, Look(job(), POLICY))]}, job(), POLICY),
        ({}, job(), replace(POLICY, pause_budget=0.0)),
        ({}, job(), replace(POLICY, layout=Parallelism(data=4))),
        ({}, job(), replace(POLICY, enforce=False)),
        ({}, job(), replace(POLICY, world_size=600)),
        ({"compared": Compared(generation=1, over=True)}, job(), POLICY),
    ],
    ids=["not settled", "stopped", "something is slow", "no pauses", "one group", "Observe", "too many ranks", "done"],
)
def test_when_nobody_is_asked(state: dict[str, Any], obs: Observation, policy: Policy) -> None:
    before = replace(RecoveryState(), **state)
    assert group_comparison.asked(before, Look(obs, policy)) == []
    assert seen(obs, before, policy) == before


def test_all_ranks_are_asked_once_a_generation() -> None:
    assert detail_requests.wanted_detail(RecoveryState(), Look(job(), POLICY)) == [0, 1, 2, 3]
    alike = job({0: [5 * MS, 45 * MS], 1: [5 * MS, 45 * MS]})
    assert detail_requests.wanted_detail(seen(alike), Look(alike, POLICY)) == []


def test_ranks_that_never_say_what_their_calls_take_are_not_asked_for_ever() -> None:
    silent = job({0: None, 1: None, 2: None, 3: None})
    quiet = [
        rank(at, comms=[replace(comm, healthy_ns=[]) for comm in each.sent.comms])
        for at, each in enumerate(silent.ranks)
    ]
    state = seen(job(ranks=[replace(each, sent=replace(each.sent, iterations=60)) for each in quiet]))
    assert state.suspicions.compared == Compared(generation=1, iteration=60)
    late = job(ranks=[replace(each, sent=replace(each.sent, iterations=260)) for each in quiet])
    assert detail_requests.wanted_detail(seen(late, state), Look(late, POLICY)) == []


# -- the suspicion -----------------------------------------------------------------------------------------------------


def test_a_suspicion_counts_from_the_first_iteration_and_has_the_links_measured() -> None:
    taken = mitigation_ladder.step(CERTAIN, Look(job(), POLICY))
    state = taken.state
    slow = state.leader
    assert taken.is_empty
    assert slow is not None
    assert (slow.id, slow.phase, slow.onset.iteration) == ("", "Suspected", 1)
    assert (slow.times.healthy_ns, slow.times.slow_ns) == (ITERATION - 40 * MS, ITERATION)
    assert slow.link is not None
    assert [place.rank for place in slow.link.ranks] == [0, 1]
    state = mitigation_ladder.step(state, Look(job(), POLICY)).state
    assert state.leader is not None
    assert state.leader.loss.seconds == pytest.approx(100 * 0.04), "of all iterations of this generation"
    probe = probe_controller.step(state, Look(job(), POLICY)).probe
    assert probe is not None
    assert (probe.measures, probe.phase) == ("Links", "Prepare")


def after_measuring(links: dict[frozenset[int], int]) -> RecoveryState:
    """Return the state after the links were measured at such rates, by their ends, bits a second."""
    state = mitigation_ladder.step(CERTAIN, Look(job(), POLICY)).state
    for replies in ({}, answers(ready), answers(measured(links))):
        state = mitigation_ladder.step(
            probe_controller.step(state, Look(job(probes=replies), POLICY)), Look(job(probes=replies), POLICY)
        ).state
    return state


def test_the_link_that_was_measured_to_be_slow_is_named_with_its_group() -> None:
    state = after_measuring({frozenset((0, 1)): 30_000_000})
    slow = state.leader
    assert slow is not None
    assert (slow.id, slow.phase) == ("gpt2-1", "Detected")
    assert slow.link is not None
    assert [end.node for end in slow.link.pair] == ["node-0", "node-1"]
    assert (slow.link.comm, slow.link.siblings) == ("data group of rank 0", 1)


def test_a_slow_link_outside_of_the_group_is_named_without_it() -> None:
    slow = after_measuring({frozenset((1, 2)): 30_000_000}).leader
    assert slow is not None
    assert slow.link is not None
    assert [end.node for end in slow.link.pair] == ["node-1", "node-2"]
    assert (slow.link.comm, slow.link.siblings) == ("", 0)


def test_where_no_link_is_slow_the_suspicion_is_forgotten_and_leaves_no_trace() -> None:
    state = after_measuring({})
    assert (state.leader, state.incidents, state.habits.spells) == (None, 0, [])
    assert state.suspicions.compared is not None
    assert state.suspicions.compared.over
    assert mitigation_ladder.step(state, Look(job(), POLICY)).state.leader is None


ONSET = Onset(iteration=90, unix_ns=0, reported_iteration=95, before_ns=ITERATION, after_ns=2 * ITERATION)


@pytest.mark.parametrize(
    ("obs", "policy", "probed"),
    [
        (job(ranks=[rank(at, comms=comms(at, TIMES.get(at)), onset=ONSET) for at in range(4)]), POLICY, None),
        (job(generation=2), POLICY, None),
        (job({2: [200 * MS, 5 * MS], 3: [150 * MS, 50 * MS]}), POLICY, None),
        (job(), replace(POLICY, pause_budget=0.0), None),
        (job(), POLICY, Probed(tries=3)),
    ],
    ids=["an onset", "another generation", "another group", "no pauses any more", "it could not be measured"],
)
def test_what_ends_a_suspicion(obs: Observation, policy: Policy, probed: Probed | None) -> None:
    slow = group_comparison.suspicion(CERTAIN, Look(job(), POLICY))
    assert slow is not None
    state = mitigation_ladder.step(replace(CERTAIN, slowdowns=[replace(slow, probed=probed)]), Look(obs, policy)).state
    assert state.leader is None
    assert state.habits.spells == []
