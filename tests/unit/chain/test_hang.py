"""A job that stands still: the ring's counts and the report let the status name the rank that never arrived."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from falcon_core.times import IDLE_SECONDS, PATIENCE_SECONDS
from falcon_core.wire.reporting.messages import MAX_COMMS, CommSignals, RankSignals
from falcon_core.wire.ring import Op, Traffic, counter_key
from tests.unit.chain.pods import Operator, Tracked, agents
from tests.unit.signals.members import Job, data_parallel
from tests.unit.signals.streams import MS

COMM = 7
CYCLES, CALLS = 60, 4 * 60
SILENT = 50.0
LATER_FIELDS = ("comms", "pairs", "comms_left_out")
replace = msgspec.structs.replace


@pytest.fixture
def stuck(tmp_path: Path) -> list[Tracked]:
    """Return the agents of three ranks: 0 and 2 are inside call 240, an iteration's first bucket, and 1 is not."""
    job = Job(3)
    data_parallel(job, CYCLES)
    return agents(tmp_path, job, {COMM: [range(3)]}, inside={COMM: (0, 2)})


def test_the_rank_that_never_arrived_is_named_with_the_call(stuck: list[Tracked]) -> None:
    operator = Operator(3, spec={"mitigation": {"mode": "Observe"}})
    operator.look([replace(agent.signals(SILENT), cpu_fraction=0.0) for agent in stuck])
    (note,) = operator.status.diagnoses
    assert (note.what, note.cause, note.rank, note.node) == ("fail-stop, hang", "Hang", 1, "node-1")
    assert note.where == "rank 1 (pod gpt2-1, node node-1)"
    assert note.why == (
        f"rank 1 never arrived at call {CALLS} (all-reduce, 1.0 MiB) of the communicator of all 3 ranks, in which 2"
        " ranks wait; rank 1's process uses no CPU: it is stopped, or blocked outside any collective"
    )
    assert note.evidence == f"calls begun in that communicator: rank 1 {CALLS}; at most {CALLS + 1}"
    assert "rank 1 never arrived" in operator.message("Ready")
    assert "rank 1 never arrived" in operator.status.summary
    assert [(event.type, event.reason) for event in operator.events] == [("Warning", "Hang")]
    operator.look([agent.signals(SILENT) for agent in stuck])
    assert operator.status.diagnoses == [note], "reported once"
    assert note.next.startswith("mode Observe: nothing is done; Enforce would restart all ranks at ")


def test_a_hang_that_has_cost_a_restart_is_ended(stuck: list[Tracked]) -> None:
    """Sixty iterations of a fifth of a second are lost, and ten seconds of standstill: it has lasted for longer."""
    operator = Operator(3)
    operator.look([replace(agent.signals(SILENT), cpu_fraction=0.0) for agent in stuck])
    (open_note,) = operator.status.diagnoses
    assert open_note.state == "Open"
    assert "s of work since the last checkpoint" in open_note.next
    assert operator.intent.membership.generation == 1
    operator.look([replace(agent.signals(SILENT), cpu_fraction=0.0) for agent in stuck])
    (note,) = operator.status.diagnoses
    assert (note.id, note.state) == (open_note.id, "Mitigating")
    assert "all ranks restarted in their pods" in note.done[0].what
    assert operator.intent.membership.generation == 2


def test_training_that_moves_again_closes_the_hang(stuck: list[Tracked]) -> None:
    operator = Operator(3)
    operator.look([agent.signals(SILENT) for agent in stuck])
    operator.look([agent.signals(0.1) for agent in stuck])
    (note,) = operator.status.diagnoses
    assert note.state == "Resolved"
    assert "went on by itself" in note.result
    assert [event.reason for event in operator.events] == ["Hang", "Resolved"]


def test_a_short_stall_is_reported_by_the_condition_alone(stuck: list[Tracked]) -> None:
    operator = Operator(3)
    operator.look([replace(agent.signals(IDLE_SECONDS - 5), cpu_fraction=0.004) for agent in stuck])
    assert (operator.status.diagnoses, operator.events) == ([], [])
    message = operator.message("Ready")
    assert "rank 1 never arrived" in message
    assert message.endswith("; rank 1's process hardly uses its CPU: a long checkpoint, or a hang")


def test_a_stall_outside_any_call_is_reported_as_such(tmp_path: Path) -> None:
    job = Job(3)
    data_parallel(job, CYCLES)
    operator = Operator(3)
    operator.look([agent.signals(SILENT) for agent in agents(tmp_path, job, {COMM: [range(3)]})])
    assert operator.status.diagnoses == []
    assert operator.message("Ready").endswith(
        "; no rank is inside a call: a long checkpoint or evaluation, or late data"
    )


def test_a_rank_at_work_is_given_time_before_it_is_called_a_hang(stuck: list[Tracked]) -> None:
    """Check the first checkpoint or evaluation, while the other ranks wait in the next collective."""
    operator = Operator(3)
    busy = [replace(agent.signals(SILENT), cpu_fraction=0.9) for agent in stuck]
    operator.look(busy)
    assert operator.status.diagnoses == []
    assert "rank 1 never arrived" in operator.message("Ready"), "named as long as the job stands still"
    operator.look([replace(agent.signals(PATIENCE_SECONDS + 1), cpu_fraction=0.9) for agent in stuck])
    (note,) = operator.status.diagnoses
    assert "uses 0.9 CPUs" in note.why


def test_a_job_that_moves_reports_nothing(stuck: list[Tracked]) -> None:
    operator = Operator(3)
    for silent in (0.1, 1.5, 5.0):
        reports = [agent.signals(silent) for agent in stuck]
        assert all(bool(report.comms) == (silent >= 1) for report in reports), "counts are reported in silence alone"
        operator.look(reports)
    assert (operator.status.diagnoses, operator.events) == ([], [])


def test_reports_without_counts_name_nobody(stuck: list[Tracked]) -> None:
    operator = Operator(3)
    operator.look([replace(agent.signals(SILENT), comms=[], pairs=[]) for agent in stuck])
    assert operator.status.summary.startswith("stalled: no rank has made progress since")
    assert operator.status.diagnoses == []


def test_a_rank_without_counts_is_not_taken_for_absent(stuck: list[Tracked]) -> None:
    operator = Operator(3)
    reports = [agent.signals(SILENT) for agent in stuck]
    operator.look([reports[0], replace(reports[1], comms=[]), reports[2]])
    assert operator.status.diagnoses == []
    assert "never arrived" not in operator.message("Ready")


def test_a_hang_with_all_ranks_inside_is_the_transfer(tmp_path: Path) -> None:
    job = Job(3)
    data_parallel(job, CYCLES)
    operator = Operator(3)
    operator.look([agent.signals(SILENT) for agent in agents(tmp_path, job, {COMM: [range(3)]}, {COMM: range(3)})])
    (note,) = operator.status.diagnoses
    assert note.why.startswith(f"all ranks are inside call {CALLS} (all-reduce, 1.0 MiB)")
    assert (note.rank, note.node) == (None, "")


def tensor_and_data(tmp_path: Path, inside: dict[int, tuple[int, ...]]) -> list[Tracked]:
    """Return the agents of six ranks, in groups of two (communicator 1) and of three (communicator 2).

    All ranks have finished their iteration, except for the ranks named by ``inside``.
    """
    job = Job(6)
    pairs, threes = [(0, 1), (2, 3), (4, 5)], [(0, 2, 4), (1, 3, 5)]
    for _ in range(CYCLES):
        job.compute(50 * MS)
        job.meet(Op.ALL_REDUCE, 1 << 16, pairs, comm=1)
        job.meet(Op.ALL_REDUCE, 1 << 20, threes, comm=2)
        job.end_cycle()
    return agents(tmp_path, job, {1: pairs, 2: threes}, inside)


def test_subgroups_are_distinguished_by_the_declared_parallelism(tmp_path: Path) -> None:
    """Check a stop of rank 3: its pair waits for it, and all further ranks wait for a rank of that pair."""
    stuck = tensor_and_data(tmp_path, {1: (2,), 2: (0, 4, 1, 5)})
    operator = Operator(6, spec={"parallelism": {"tensor": 2}})
    operator.look([agent.signals(SILENT) for agent in stuck])
    (note,) = operator.status.diagnoses
    assert (note.rank, note.node) == (3, "node-3")
    assert f"never arrived at call {CYCLES}" in note.why
    undeclared = Operator(6)
    undeclared.look([agent.signals(SILENT) for agent in stuck])
    assert undeclared.status.diagnoses == [], "nothing shows which rank is in which group"


def test_a_receiver_waits_for_its_sender(tmp_path: Path) -> None:
    """Check a receiver: rank 1 is inside its 31st receive from rank 0, and rank 0 has sent 30 times.

    Ranks 0 and 2 do not communicate with each other. Rank 2 waits in the collective after the transfer.
    """
    job = Job(3)
    data_parallel(job, CYCLES)
    pairs = {
        0: {counter_key(COMM, Traffic.SEND, 1): (30, 30)},
        1: {counter_key(COMM, Traffic.RECV, 0): (31, 30)},
    }
    operator = Operator(3)
    operator.look([agent.signals(SILENT) for agent in agents(tmp_path, job, {COMM: [range(3)]}, {COMM: (2,)}, pairs)])
    (note,) = operator.status.diagnoses
    assert (note.rank, note.node) == (0, "node-0")
    assert "rank 0 never arrived at transfer 30 from rank 0 to rank 1 (all ranks), in which 1 rank waits" in note.why
    assert "rank 1 never" not in note.why


def test_the_report_is_bounded() -> None:
    comm = CommSignals(
        comm=1 << 20,
        size=8192,
        place=8191,
        entered=1 << 31,
        finished=1 << 31,
        op=11,
        bytes=1 << 34,
        excess_ns=[1 << 36] * 2,
    )
    full = RankSignals(rank=8191, tracking="Tracking", comms=[comm] * MAX_COMMS)
    bare = RankSignals(rank=8191, tracking="Tracking")
    assert len(msgspec.json.encode(full)) - len(msgspec.json.encode(bare)) <= 1280
