"""The rank that failed first, of several that failed together: whatever their clocks say, and in whatever order."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.model import Severity
from falcon_core.recovery.failstop import restart_ladder
from falcon_core.recovery.failstop.faults import rank_fault
from falcon_core.recovery.model.actions import Replace, Restart
from falcon_core.recovery.model.events import StopClosed
from falcon_core.recovery.model.failure import Fault
from falcon_core.recovery.model.observation import Look, Observation, Spares
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.wire.reporting.messages import CommSignals
from tests.unit.recovery.seen import NOW, POLICY, ended, four_pods, rank, replace

RANKS = 4
FOUR = replace(POLICY, world_size=RANKS)
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered (train.py:75 in main)"
REMOTE = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
PEER_GONE = "RuntimeError: [pair.cc:525] Connection closed by peer [10.0.0.3]:27189 (train.py:75 in main)"
UNKNOWN = "mylib.StrangeError: it did not work (train.py:75 in main)"
SPARE = Spares(pool="spares", available=True)


def failed(
    number: int, *, exit_code: int | None = 1, signal: int | None = None, words: str = "", entered: int | None = None
) -> dict[str, Any]:
    """Return the fields of a rank that has ended. ``entered``: collectives begun; None: its agent counts none."""
    comms = [] if entered is None else [CommSignals(comm=7, size=RANKS, place=number, entered=entered)]
    end = ended(exit_code=None if signal else exit_code, signal=signal)
    return {**end, "last_words": words, "comms": comms}


def look_at(ends: dict[int, dict[str, Any]], clocks: list[float], **fields: Any) -> Look:
    """Return a look at four ranks; ``clocks``: seconds by which each rank's reported time is off."""
    ranks = [
        rank(number, **{**own, "ended_at": own["ended_at"] + clocks[number]} if (own := ends.get(number)) else {})
        for number in range(RANKS)
    ]
    return Look(four_pods(ranks, spares=SPARE, **fields), FOUR)


def first(ends: dict[int, dict[str, Any]], clocks: list[float]) -> Fault:
    fault = rank_fault(look_at(ends, clocks))
    assert fault is not None
    return fault


def everyone(own: dict[int, dict[str, Any]], **others: Any) -> dict[int, dict[str, Any]]:
    """Return the ends of all ranks: those given, and for the others the same ``others``."""
    return {number: own.get(number) or failed(number, **others) for number in range(RANKS)}


CASES = {
    "ECC on one rank, peers abort": everyone({2: failed(2, words=ECC)}, signal=6, words=REMOTE),
    "an exit code without words, peers get SIGTERM": everyone(
        {2: failed(2, exit_code=1, entered=9)}, signal=15, entered=10
    ),
    "an exit code without words, peers get SIGTERM, and no counts": everyone({2: failed(2, exit_code=1)}, signal=15),
    "a rank is asked to end, peers abort": everyone({2: failed(2, signal=15, entered=9)}, signal=6, entered=10),
    "an exception of no class, peers raise others": everyone(
        {2: failed(2, words=UNKNOWN, entered=9)}, words=UNKNOWN, entered=10
    ),
    "SIGKILL, peers raise what no class knows": everyone(
        {2: failed(2, signal=9, entered=9)}, words=UNKNOWN, entered=10
    ),
    "SIGKILL in the collective that all ranks are in": everyone(
        {2: failed(2, signal=9, entered=10)}, words=UNKNOWN, entered=10
    ),
    "a launcher kills the peers of an exception": everyone(
        {2: failed(2, words=UNKNOWN, entered=9)}, signal=9, entered=10
    ),
    "a rank ends with 0, peers abort without words": everyone(
        {2: failed(2, exit_code=0, entered=9)}, signal=6, entered=10
    ),
    "a rank ends with 0, peers say that it has gone": everyone({2: failed(2, exit_code=0)}, words=PEER_GONE),
    "all say that a peer has gone, and one has begun fewer calls": everyone(
        {2: failed(2, words=PEER_GONE, entered=9)}, words=PEER_GONE, entered=10
    ),
}


@pytest.mark.parametrize("case", CASES)
@given(clocks=st.lists(st.floats(-1.0, 1.0), min_size=RANKS, max_size=RANKS))
def test_the_first_rank_is_named_whatever_the_clocks_say(case: str, clocks: list[float]) -> None:
    assert first(CASES[case], clocks).rank == 2


def named_after(ends: dict[int, dict[str, Any]], clocks: list[float], heard: list[list[int]]) -> int | None:
    """Return the rank that is named at last, if the operator hears of these groups of ranks one after the other."""
    state, now, stops = RecoveryState(), NOW, False
    for count in range(1, len(heard) + 3):
        known = {number: ends[number] for group in heard[:count] for number in group}
        look = look_at(known, clocks, **({"generation": 2, "running": False} if stops else {}))
        taken = restart_ladder.step(state, replace(look, obs=replace(look.obs, now=now)))
        if taken.events:
            (closed,) = taken.events
            assert isinstance(closed, StopClosed)
            return closed.incident.fault.rank
        state, stops = taken.state, stops or bool(taken.commands)
        now += 0.2 if count < len(heard) else restart_ladder.OTHERS_SECONDS
    assert state.stop is not None
    return state.stop.fault.rank


def in_groups(order: list[int], cuts: set[int]) -> list[list[int]]:
    bounds = [0, *sorted(cuts), len(order)]
    return [order[first:last] for first, last in pairwise(bounds)]


@pytest.mark.parametrize("case", CASES)
@given(
    clocks=st.lists(st.floats(-1.0, 1.0), min_size=RANKS, max_size=RANKS),
    order=st.permutations(list(range(RANKS))),
    cuts=st.sets(st.integers(1, RANKS - 1)),
)
def test_neither_clocks_nor_the_order_of_reports_change_the_named_rank(
    case: str, clocks: list[float], order: list[int], cuts: set[int]
) -> None:
    assert named_after(CASES[case], clocks, in_groups(order, cuts)) == 2


def test_of_ends_that_prove_nothing_and_counts_that_nobody_knows_the_clock_decides() -> None:
    ends = {number: failed(number, words=f"mylib.StrangeError: part {number} did not work") for number in range(RANKS)}
    assert first(ends, [0.0, -0.5, 0.0, 0.0]).rank == 1


def test_the_same_error_on_all_ranks_is_no_ranks_and_no_nodes() -> None:
    fault = first(everyone({}, words="TypeError: step() takes 2 arguments (train.py:75 in main)"), [0.0] * RANKS)
    assert (fault.rank, fault.node) == (None, "")
    assert fault.text.startswith("all 4 ranks failed alike: exited with code 1: TypeError")


def test_the_only_rank_without_an_end_is_the_one_that_its_peers_lost() -> None:
    ends = {number: failed(number, words=REMOTE) for number in (0, 1, 3)}
    fault = first(ends, [0.0] * RANKS)
    assert fault.rank == 2
    assert "its peers lost it" in fault.text


def test_what_came_long_before_all_others_needs_no_more_than_the_clock() -> None:
    asked = {**failed(2, signal=15), "ended_at": NOW - 100}
    assert first(everyone({2: asked}, words=UNKNOWN), [0.0] * RANKS).rank == 2
    early = {**failed(2, exit_code=0), "ended_at": NOW - 100}
    cause = failed(1, words="ValueError: bad shape (train.py:75 in main)")
    assert first({1: cause, 2: early}, [0.0] * RANKS).rank == 1, "rank 2 had less to do"


@given(clocks=st.lists(st.floats(-1.0, 1.0), min_size=RANKS, max_size=RANKS))
def test_where_all_ranks_lost_a_peer_no_rank_and_no_node_is_named(clocks: list[float]) -> None:
    fault = first(everyone({}, words=REMOTE), clocks)
    assert (fault.rank, fault.node, fault.consequence) == (None, "", True)
    assert fault.text.startswith("all 4 ranks lost a peer: ")


def test_a_chain_of_waits_leads_to_its_source() -> None:
    ends = {
        0: failed(0, words=UNKNOWN, entered=12),
        1: failed(1, signal=9, entered=11),
        3: failed(3, signal=6, entered=10),
    }
    assert first(ends, [0.0] * RANKS).rank == 3


def test_words_that_name_another_rank_lead_to_it() -> None:
    ends = {
        0: failed(0, words="RuntimeError: rank 3 died (train.py:75 in main)"),
        3: failed(3, exit_code=1),
    }
    assert first(ends, [-0.9, 0.0, 0.0, 0.9]).rank == 3


RELAYED = (
    "ray.exceptions.RayTaskError(RuntimeError): ray::Worker.step() (pid=811, ip=10.0.0.3) RuntimeError: CUDA error:"
    " uncorrectable ECC error encountered"
)


def test_a_driver_that_raises_its_workers_error_again_loses_no_node() -> None:
    look = look_at({0: failed(0, words=RELAYED)}, [0.0] * RANKS)
    fault = rank_fault(look)
    assert fault is not None
    assert (fault.rank, fault.error_class, fault.hearsay) == (0, "EccError", True)
    assert fault.severity is not Severity.SEV1
    state = RecoveryState()
    for _ in range(3):
        taken = restart_ladder.step(state, look)
        assert not [command for command in taken.commands if isinstance(command, Replace)]
        state = replace(taken.state, stop=None)


def test_a_driver_that_names_its_workers_address_blames_the_workers_node() -> None:
    look = look_at({0: failed(0, words=RELAYED)}, [0.0] * RANKS)
    members = [replace(member, address=f"10.0.0.{member.replica}") for member in look.obs.members]
    fault = rank_fault(replace(look, obs=replace(look.obs, members=members)))
    assert fault is not None
    assert (fault.rank, fault.node, fault.severity, fault.hearsay) == (3, "node-3", Severity.SEV1, False)
    assert fault.witness == "rank 0 says so of it"


def test_an_error_that_is_copied_to_all_ranks_is_that_of_the_rank_it_names() -> None:
    copied = "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([2])"
    ends = everyone({}, words=f"(RANK 2) RuntimeError: {ECC.partition(': ')[2]}")
    assert first(ends, [0.0] * RANKS).rank == 2
    assert first(everyone({2: failed(2, words=ECC)}, words=copied), [0.0] * RANKS).rank == 2


def stopping(ends: dict[int, dict[str, Any]], clocks: list[float], seconds: float) -> Look:
    """Return a look at the same job while it is being stopped for the next generation."""
    look = look_at(ends, clocks, generation=2, running=False)
    obs: Observation = replace(look.obs, now=NOW + seconds)
    return replace(look, obs=obs)


def test_hardware_that_is_reported_during_the_restart_is_left_in_it() -> None:
    peers = {number: failed(number, words=REMOTE) for number in (0, 1, 3)}
    taken = restart_ladder.step(RecoveryState(), look_at(peers, [0.0] * RANKS))
    assert taken.commands == [Restart()]
    late = {**peers, 2: {**failed(2, words=ECC), "ended_at": NOW + 1.0}}
    taken = restart_ladder.step(taken.state, stopping(late, [0.0] * RANKS, 1.5))
    (command,) = taken.commands
    assert isinstance(command, Replace)
    assert command.replica == 2
    stop = taken.state.stop
    assert stop is not None
    assert (stop.fault.rank, stop.fault.severity) == (2, Severity.SEV1)
    assert [step.what for step in stop.done] == ["Restart", "Replace"]
    assert [attempt.kind for attempt in taken.state.attempts] == ["Replace"], "one failure, and one attempt"
    again = restart_ladder.step(taken.state, stopping(late, [0.0] * RANKS, 2.0))
    assert again.commands == [], "its node is left once"


def named(ends: dict[int, dict[str, Any]], seconds: float) -> bool:
    """Return whether the first failed rank is named to people so long after the failure was seen."""
    taken = restart_ladder.step(RecoveryState(), look_at(ends, [0.0] * RANKS))
    taken = restart_ladder.step(taken.state, stopping(ends, [0.0] * RANKS, seconds))
    assert taken.state.stop is not None
    return taken.state.stop.named


def test_people_hear_of_a_rank_when_its_peers_had_the_time_to_report() -> None:
    unknown = {1: failed(1, words=UNKNOWN)}
    assert [named(unknown, seconds) for seconds in (0.0, 0.9, 1.0)] == [False, False, True]
    lost = {1: failed(1, words=PEER_GONE)}
    assert [named(lost, seconds) for seconds in (1.0, 9.0, 10.0)] == [False, False, True]
    assert named({2: failed(2, words=ECC)}, 0.0), "no report of another rank can change that"
    assert named(everyone({2: failed(2, signal=9)}, words=PEER_GONE), 0.0), "all have reported"


def test_no_rank_that_lost_a_peer_is_named_because_the_stop_has_ended_the_peer() -> None:
    lost = {number: failed(number, words=PEER_GONE) for number in (0, 1)}
    stopped = {**lost, **{number: {**failed(number, signal=15), "ended_at": NOW + 3.0} for number in (2, 3)}}
    heard = {**stopped, 2: {**stopped[2], "last_words": ECC}}
    taken = restart_ladder.step(RecoveryState(), look_at(lost, [0.0] * RANKS))
    shown: list[tuple[int | None, bool]] = []
    for ends, seconds in ((stopped, 3.2), (stopped, 4.0), (heard, 4.5)):
        taken = restart_ladder.step(taken.state, stopping(ends, [0.0] * RANKS, seconds))
        assert taken.state.stop is not None
        shown.append((taken.state.stop.fault.rank, taken.state.stop.named))
    assert shown == [(0, False), (0, False), (2, True)]


def test_a_process_that_the_stop_itself_ended_corrects_nothing() -> None:
    ends = {1: failed(1, signal=9)}
    taken = restart_ladder.step(RecoveryState(), look_at(ends, [0.0] * RANKS))
    late = {**ends, 2: {**failed(2, words=UNKNOWN), "ended_at": NOW + 1.0}}
    taken = restart_ladder.step(taken.state, stopping(late, [0.0] * RANKS, 1.5))
    assert taken.state.stop is not None
    assert taken.state.stop.fault.rank == 1
