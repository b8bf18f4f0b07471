"""When a job that does not move is reported as a hang, by what the awaited rank's process does meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.model import Cause, Severity
from falcon_core.recovery import Look, machine
from falcon_core.recovery.diagnosis.communicator_progress import nobody_waits
from falcon_core.recovery.failstop import restart_ladder
from falcon_core.recovery.failstop.hangs import due, explain, step
from falcon_core.recovery.model.actions import GiveUp, Restart
from falcon_core.recovery.model.events import StopClosed
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.times import IDLE_SECONDS, LULL_SECONDS, PATIENCE_SECONDS
from falcon_core.topology.parallelism import Parallelism
from falcon_core.wire.reporting.messages import CommSignals, PairSignals
from tests.unit.recovery.seen import POLICY, rank, replace, seen

STATE = RecoveryState()


def stalled(seconds: float, inside: tuple[int, ...] = (1, 2), **zero: Any) -> Any:
    """Return a stall in which ranks 1 and 2 wait for rank 0; ``zero`` gives further fields of rank 0."""
    ranks: dict[int, dict[str, Any]] = {
        rank: {
            "stalled": True,
            "silent_seconds": seconds,
            "comms": [CommSignals(comm=7, size=3, place=rank, entered=40 + (rank in inside), finished=40)],
        }
        for rank in range(3)
    }
    ranks[0] |= zero
    return seen(ranks=ranks)


@pytest.mark.parametrize(
    ("zero", "patience"),
    [
        ({"cpu_fraction": 0.0}, IDLE_SECONDS),
        ({"cpu_fraction": None}, IDLE_SECONDS),
        ({"cpu_fraction": 0.003}, LULL_SECONDS),
        ({"cpu_fraction": 0.0, "blocked_seconds": 31.0}, LULL_SECONDS),
        ({"cpu_fraction": 0.8}, PATIENCE_SECONDS),
    ],
    ids=["stopped", "unknown", "now and then", "waits for a device", "at work"],
)
def test_how_long_the_awaited_rank_is_waited_for(zero: dict[str, Any], patience: float) -> None:
    """Check a stall in which rank 0 writes the first checkpoint or hangs, and the others are in the next all-reduce."""
    early = step(STATE, Look(stalled(patience - 1, **zero), POLICY)).state
    assert early.hang is None
    late = step(STATE, Look(stalled(patience + 1, **zero), POLICY)).state
    assert late.hang is not None
    assert [rank.place.rank for rank in late.hang.findings[0].ranks] == [0]


# A real job of 8 Gloo ranks, tensor, pipeline and data parallelism of 2 each, while rank 5 sleeps before its batch: the
# counts (entered, finished) in the tensor and the data group, and of sends to and receives from the other stage.
LAYOUT = Parallelism(tensor=2, data=2, pipeline=2)
SLEEPING = [
    ((597, 597), (149, 149), (299, 299), (299, 298)),
    ((597, 597), (149, 149), (299, 298), (298, 298)),
    ((600, 600), (150, 149), (300, 300), (300, 300)),
    ((600, 600), (150, 149), (300, 300), (300, 300)),
    ((597, 596), (149, 149), (298, 298), (299, 299)),
    ((596, 596), (149, 149), (298, 298), (298, 298)),
    ((600, 600), (150, 149), (300, 300), (300, 300)),
    ((600, 600), (150, 149), (300, 300), (300, 300)),
]


def test_in_a_job_with_three_kinds_of_parallelism_of_one_size_the_rank_that_sleeps_is_found() -> None:
    """Rank 1 is in a send that rank 5 does not take: it waits like the others, and is not to blame."""
    tensor, everybody, data = 1, 2, 3
    ranks = [
        rank(
            number,
            stalled=True,
            silent_seconds=60.0,
            comms=[
                CommSignals(comm=tensor, size=2, place=number % 2, entered=in_tensor[0], finished=in_tensor[1]),
                CommSignals(comm=everybody, size=8, place=number),
                CommSignals(comm=data, size=2, place=number // 2 % 2, entered=in_data[0], finished=in_data[1]),
            ],
            pairs=[
                PairSignals(comm=everybody, peer=(number + 4) % 8, sending=True, entered=sent[0], finished=sent[1]),
                PairSignals(comm=everybody, peer=(number + 4) % 8, sending=False, entered=got[0], finished=got[1]),
            ],
        )
        for number, (in_tensor, in_data, sent, got) in enumerate(SLEEPING)
    ]
    obs = replace(seen(), ranks=[replace(each, replica=each.rank // 4) for each in ranks])
    policy = replace(POLICY, world_size=8, stages=2, layout=LAYOUT)
    findings = explain(Look(obs, policy))
    assert {awaited.place.rank for finding in findings for awaited in finding.ranks} == {5}
    assert {finding.comm for finding in findings} >= {"tensor group of rank 4", "data group of rank 5"}
    assert step(STATE, Look(obs, policy)).state.hang is not None, "at once, and not after ten minutes"


def test_where_nobody_is_inside_a_call_nobody_is_waited_for() -> None:
    """Check ranks that all save their shards or wait for data: a hang has a rank that waits."""
    outside = stalled(PATIENCE_SECONDS - 1, inside=())
    assert nobody_waits(outside)
    assert explain(Look(outside, POLICY)) == []
    assert step(STATE, Look(outside, POLICY)).state.hang is None


def _after_others_ended(waits: bool) -> Any:
    """Return ranks 1 and 2 that have ended with exit code 0, while rank 0 is silent: inside a call, or not."""
    counts = CommSignals(comm=7, size=3, place=0, entered=40 + waits, finished=40)
    obs = stalled(2 * PATIENCE_SECONDS, inside=(), comms=[counts])
    ended = [replace(rank, process="Ended", exit_code=0) if rank.rank else rank for rank in obs.ranks]
    return replace(obs, ranks=ended)


def test_a_rank_that_runs_on_by_itself_after_the_others_have_ended_well_does_not_hang() -> None:
    obs = _after_others_ended(waits=False)
    assert nobody_waits(obs)
    assert step(STATE, Look(obs, POLICY)).state.hang is None


def test_a_rank_that_waits_in_a_call_for_ranks_that_have_ended_well_hangs() -> None:
    obs = _after_others_ended(waits=True)
    assert not nobody_waits(obs)
    assert step(STATE, Look(obs, POLICY)).state.hang is not None


def test_where_all_ranks_have_ended_well_none_is_left_that_could_wait() -> None:
    obs = _after_others_ended(waits=False)
    assert not nobody_waits(replace(obs, ranks=obs.ranks[1:]))


@pytest.mark.parametrize(
    "zero",
    [
        {"comms": []},
        {"fresh": False},
        {"comms_left_out": 1},
        {"comms": [CommSignals(comm=7, size=3, place=0, entered=41, finished=None)]},
        {"pairs": [PairSignals(comm=7, peer=1, sending=False, entered=5, finished=4)]},
    ],
    ids=["no counts", "an old report", "more than a report holds", "ends not known", "in a receive"],
)
def test_where_a_rank_may_be_inside_a_call_it_is_not_said_that_nobody_waits(zero: dict[str, Any]) -> None:
    assert not nobody_waits(stalled(30, inside=(), **zero))


def hung(seconds: float, state: RecoveryState = STATE, policy: Policy = POLICY, **fields: Any) -> RecoveryState:
    """Return the state in which the hang of ``stalled`` has been open since it was found."""
    state = step(state, Look(replace(stalled(seconds, cpu_fraction=0.0), **fields), policy)).state
    assert state.hang is not None
    return state


def test_a_hang_is_ended_when_it_has_cost_what_a_restart_costs() -> None:
    """A hundred iterations of 0.25 s were trained and no interval is declared: 25 s of work, and 10 s of standstill."""
    declared = replace(POLICY, checkpoint_interval_seconds=400.0)
    for policy, state, price in (
        (POLICY, STATE, 10 + 25.0),
        (POLICY, replace(STATE, overheads={"RestartProcesses": 70.0}), 70 + 25.0),
        (declared, replace(STATE, overheads={"RestartProcesses": 70.0}), 70 + 25.0),
    ):
        open_hang = hung(IDLE_SECONDS + 1, state, policy)
        assert open_hang.hang is not None
        assert open_hang.hang.restart_seconds == pytest.approx(price)
        since = open_hang.hang.since
        early, late = (
            replace(stalled(seconds, cpu_fraction=0.0), now=since + seconds) for seconds in (price - 1, price + 1)
        )
        assert due(open_hang, Look(early, policy)) is None
        fault = due(open_hang, Look(late, policy))
        assert fault is not None
        assert (fault.cause, fault.severity, fault.rank, fault.node) == (Cause.HANG, Severity.SEV2, 0, "node-0")


def test_however_much_work_is_lost_a_hang_outlasts_no_librarys_timeout() -> None:
    long = stalled(IDLE_SECONDS + 1, cpu_fraction=0.0)
    ranks = [replace(rank, sent=replace(rank.sent, iterations=100_000)) for rank in long.ranks]
    state = hung(IDLE_SECONDS + 1, ranks=ranks)
    assert state.hang is not None
    assert state.hang.restart_seconds > 5000
    early, late = (
        replace(stalled(seconds, cpu_fraction=0.0), now=state.hang.since + seconds)
        for seconds in (PATIENCE_SECONDS - 1, PATIENCE_SECONDS + 1)
    )
    assert due(state, Look(early, POLICY)) is None
    assert due(state, Look(late, POLICY)) is not None


def test_in_observe_nothing_is_done_about_a_hang() -> None:
    observe = replace(POLICY, enforce=False)
    state = hung(IDLE_SECONDS + 1, policy=observe)
    assert due(state, Look(replace(stalled(9000, cpu_fraction=0.0), now=state.hang.since + 9000), observe)) is None  # type: ignore[union-attr]


def test_where_ranks_work_by_themselves_or_move_again_nothing_is_done() -> None:
    state = hung(IDLE_SECONDS + 1)
    assert state.hang is not None
    later = state.hang.since + 900
    assert due(state, Look(replace(stalled(900, inside=()), now=later), POLICY)) is None
    assert due(state, Look(replace(stalled(900, cpu_fraction=0.0, stalled=False), now=later), POLICY)) is None


def test_a_standstill_that_names_no_rank_blames_no_node() -> None:
    """All ranks are inside the same call: the network, or any of them."""
    late = stalled(PATIENCE_SECONDS + 1, inside=(0, 1, 2))
    state = step(STATE, Look(late, POLICY)).state
    fault = due(state, Look(late, POLICY))
    assert fault is not None
    assert (fault.node, fault.rank) == ("", None)
    for _ in range(3):
        taken = restart_ladder.step(state, Look(late, POLICY))
        state = taken.state
        assert taken.in_order() == [Restart()]
        state = step(replace(state, stop=None), Look(late, POLICY)).state
    assert {attempt.node for attempt in state.attempts} == {""}
    taken = restart_ladder.step(state, Look(late, POLICY))
    assert [type(action) for action in taken.in_order()] == [StopClosed, GiveUp], "no node is replaced by chance"


STACK = ["all_reduce (c10d.py:9)", "step (train.py:40)"]


def silent_interpreters(seconds: float, mute: set[int], inside: tuple[int, ...], **zero: Any) -> Any:
    """Return the stall of ``stalled`` in which the interpreters of the ranks ``mute`` do not write their stacks."""
    obs = stalled(seconds, inside=inside, **zero)
    deadline = 8_000_000_000
    ranks = [
        replace(each, sent=replace(each.sent, hang_deadline_ns=deadline, stack=[] if each.rank in mute else STACK))
        for each in obs.ranks
    ]
    return replace(obs, ranks=ranks)


def test_of_ranks_that_are_all_inside_a_call_the_one_that_does_not_answer_is_named() -> None:
    """A process that was stopped after it had begun the call which the others wait in."""
    obs = silent_interpreters(IDLE_SECONDS + 1, {2}, inside=(0, 1, 2))
    state = step(STATE, Look(obs, POLICY)).state
    assert state.hang is not None
    (finding,) = state.hang.findings
    assert (finding.kind, [each.place.rank for each in finding.ranks], finding.total) == ("Transfer", [2], 1)
    fault = due(state, Look(replace(obs, now=state.hang.since + 900), POLICY))
    assert fault is not None
    assert (fault.rank, fault.node, fault.text) == (2, "node-2", "does not answer, inside a collective with the others")


@pytest.mark.parametrize(
    ("seconds", "mute"),
    [(IDLE_SECONDS + 1, {1, 2}), (IDLE_SECONDS + 1, set()), (9.0, {2})],
    ids=["most do not", "all do", "too early to know"],
)
def test_where_it_is_not_certain_who_answers_nobody_is_named(seconds: float, mute: set[int]) -> None:
    (finding,) = explain(Look(silent_interpreters(seconds, mute, inside=(0, 1, 2)), POLICY))
    assert finding.total == 3
    assert all(each.answers for each in finding.ranks)


@pytest.mark.parametrize(("cpu", "patience"), [(0.003, IDLE_SECONDS), (0.8, PATIENCE_SECONDS)])
def test_a_rank_that_never_arrived_and_does_not_answer_writes_no_checkpoint(cpu: float, patience: float) -> None:
    """Its program is over, and its process does not end; or it works where no handler runs."""
    early, late = (
        silent_interpreters(seconds, {0}, inside=(1, 2), cpu_fraction=cpu) for seconds in (patience - 1, patience + 1)
    )
    assert step(STATE, Look(early, POLICY)).state.hang is None
    state = step(STATE, Look(late, POLICY)).state
    assert state.hang is not None
    assert [(each.place.rank, each.answers) for each in state.hang.findings[0].ranks] == [(0, False)]


def test_the_failure_is_the_hang() -> None:
    state = hung(IDLE_SECONDS + 1)
    late = replace(stalled(100, cpu_fraction=0.0), now=state.hang.since + 100)  # type: ignore[union-attr]
    taken = machine.step(state, Look(late, POLICY))
    state = taken.state
    assert taken.in_order() == [Restart()]
    assert state.hang is None
    assert state.stop is not None
    assert state.stop.hang is not None
    assert (state.stop.id, state.incidents) == ("gpt2-1", 1)


def test_ranks_with_the_same_stack_are_counted_together_and_the_awaited_come_first() -> None:
    waiting, alone = ["all_reduce (c10d.py:9)", "step (train.py:40)"], ["load (data.py:7)", "step (train.py:30)"]
    obs = stalled(IDLE_SECONDS + 1, cpu_fraction=0.0)
    ranks = [replace(rank, sent=replace(rank.sent, stack=waiting if rank.rank else alone)) for rank in obs.ranks]
    state = step(STATE, Look(replace(obs, ranks=ranks), POLICY)).state
    assert state.hang is not None
    assert [(group.frames, group.ranks, group.total) for group in state.hang.stacks] == [
        (alone, [0], 1),
        (waiting, [1, 2], 2),
    ]
    followed = step(state, Look(obs, POLICY)).state
    assert followed.hang == state.hang, "a report without stacks takes none away"
