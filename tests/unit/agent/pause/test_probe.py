"""A pod's part in a probe: what its ranks are ordered, what it answers, and everything that lets them go on."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from falcon_agent.launch.run_dir import RunDir
from falcon_agent.pause import probe
from falcon_agent.pause.cut import Start, start_of, targets_of
from falcon_agent.pause.probe import Probing
from falcon_core.signals.calls.iteration_counts import IterationCounts
from falcon_core.times import PAUSE_UNENDED_SECONDS
from falcon_core.wire.launcher import control
from falcon_core.wire.launcher.launch import (
    CONTROL_FILE,
    PROBE_ASKED_FILE,
    PROBE_FILE,
    LaunchCheck,
    LaunchRank,
    LaunchStatus,
)
from falcon_core.wire.measurement.check_links import LinksOrder
from falcon_core.wire.measurement.probe import ChannelStart, ProbeOrder, ProbeReport, RankStart
from falcon_core.wire.ring import COUNTER_DTYPE, RECORD_DTYPE, GateReason, Kind, RingStatus, Traffic, counter_key

KEY = counter_key(1, Traffic.COLLECTIVE)
COUNTS = IterationCounts(starts={KEY: 10}, calls={KEY: 2})
CHANNELS = [ChannelStart(1, 2, 0, Traffic.COLLECTIVE, 0, 10, 2)]
RANKS = (4, 5)
LINKS = LinksOrder(number=7, token="f" * 32, milliseconds=200, ring=[(1, "10.0.0.1", 41), (2, "10.0.0.2", 42)])
replace = msgspec.structs.replace


class Ring:
    """A rank's ring, as far as a probe reads it."""

    def __init__(self, pid: int) -> None:
        self.header = SimpleNamespace(pid=pid)
        self.entered, self.finished = 14, 14  # two iterations begun since the start that is named
        self.gate = self.table = self.opened = self.waiting = 0

    def status(self) -> RingStatus:
        return RingStatus(0, 0, self.gate, self.opened, self.waiting, GateReason(0), self.table)

    def counters(self) -> Any:
        counters = np.zeros(1, dtype=COUNTER_DTYPE)
        counters["key"], counters["entered"], counters["finished"] = KEY, self.entered, self.finished
        return counters


class Pod:
    """The agent's side of a pod with two ranks, of replica 2, with the test in all other places."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        run_dir = RunDir(folder)
        run_dir.write_control()
        (folder / "launch").mkdir()
        self.rings = {rank: Ring(100 + rank) for rank in RANKS}
        self.now = 50.0
        self.enqueues = False
        self.status = LaunchStatus(
            generation=3,
            dead_below=3,
            state="Running",
            links=LaunchCheck(number=7, running=True),
            ranks=[
                LaunchRank(local_rank=at, rank=rank, pid=100 + rank, state="Running", started_unix_ns=1)
                for at, rank in enumerate(RANKS)
            ],
        )
        tracker: Any = SimpleNamespace(followed=lambda generation: self._followed(generation))
        monkeypatch.setattr(probe, "start_of", lambda rank, _: Start(RankStart(rank, CHANNELS), COUNTS))
        self.probing = Probing(run_dir, tracker)
        self.probing.take_over()

    def _followed(self, generation: int) -> dict[int, Any]:
        known = {rank: SimpleNamespace(reader=ring, enqueues=self.enqueues) for rank, ring in self.rings.items()}
        return known if generation == 3 else {}

    def order(self, phase: str, number: int = 7, **fields: Any) -> bool:
        fields.setdefault("generation", 3)
        if phase == "Hold":
            fields |= {"stops": dict.fromkeys(RANKS, 4), "arrive_ms": 5000, "deadline_ms": 20_000, "links": LINKS}
        return self.probing.take(ProbeOrder(epoch=1, number=number, phase=phase, **fields), 2, self.now)  # type: ignore[arg-type]

    def look(self, seconds: float = 0.02) -> ProbeReport:
        """Look twice, after so long."""
        self.now += seconds
        for _ in range(2):
            self.probing.look(self.status, self.now, reads=True)
        report = self.probing.report(self.now)
        assert report is not None
        return report

    def printed(self, **fields: Any) -> None:
        """Let the executor write what it has found."""
        path = self.folder / PROBE_FILE
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps({"number": 7, "port": 41, **fields}))
        fresh.rename(path)

    def stand(self, *ranks: int) -> None:
        """Let ranks come to the cut: eight calls beyond the start, of which four had begun."""
        for rank in ranks or RANKS:
            ring = self.rings[rank]
            ring.entered = ring.finished = 18
            ring.gate, ring.table, ring.waiting = 1, 2, 1

    @property
    def is_closed(self) -> bool:
        raw = (self.folder / CONTROL_FILE).read_bytes()
        return bool(int.from_bytes(raw[control.MODE_OFFSET : control.MODE_OFFSET + 4], "little") & control.ARMED)

    @property
    def asked(self) -> bool:
        return (self.folder / PROBE_ASKED_FILE).exists()


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pod:
    return Pod(tmp_path, monkeypatch)


@pytest.fixture
def held(pod: Pod) -> Pod:
    """Return a pod whose ranks are to stand still."""
    pod.printed()
    pod.order("Prepare")
    pod.look()
    pod.order("Hold")
    return pod


def test_training_goes_on_while_it_gets_ready(pod: Pod) -> None:
    assert pod.probing.wanted == 0
    assert pod.order("Prepare")
    assert pod.probing.wanted == 7, "the launcher is to start the executor"
    assert pod.look().links.port == -1
    pod.printed()
    answer = pod.look()
    assert (answer.number, answer.links.port, answer.is_open) == (7, 41, True)
    assert answer.ranks == [RankStart(rank, CHANNELS, 2) for rank in RANKS]
    pod.rings[5].entered = 17
    assert pod.look().ranks[1].begun == 4, "one that has begun counts"
    assert not pod.is_closed


def test_it_measures_when_all_its_ranks_stand_and_lets_them_go(held: Pod) -> None:
    assert held.is_closed
    assert held.probing.seconds_to_next() < 0.1
    held.stand(4)
    assert not held.look().held
    assert not held.asked
    held.stand()
    assert held.look(1.0).held
    order = json.loads((held.folder / PROBE_ASKED_FILE).read_text())
    assert (order["number"], order["own"], [turn["peer"] for turn in order["turns"]]) == (7, 2, [1])
    held.printed(links=[{"peer": 1, "bits": 5e9, "rtt_us": 80}])
    assert [link.bits for link in held.look(1.0).links.links] == [5_000_000_000]
    assert held.order("Release")
    report = held.look()
    assert (report.is_open, report.why, report.passed) == (True, "", False)
    assert report.held_ms == pytest.approx(2020, abs=50)
    assert not held.is_closed
    assert held.probing.wanted == 0


def test_a_rank_in_a_collective_does_not_stand(held: Pod) -> None:
    held.stand()
    held.rings[4].finished = 17
    assert not held.look().held


def test_ranks_that_were_past_the_cut_are_not_stopped(held: Pod) -> None:
    held.rings[5].entered = 19
    report = held.look()
    assert (report.passed, report.is_open) == (True, True)
    assert report.why == "rank 5 was past the cut"
    assert not held.is_closed
    assert held.probing.wanted == 0


def _late(pod: Pod) -> None:
    pod.stand(4)
    pod.look(5.1)


def _gave_up(pod: Pod) -> None:
    pod.stand()
    pod.rings[4].opened = 1


def _unended(pod: Pod) -> None:
    pod.stand()
    pod.look()
    pod.printed(links=[{"peer": 1, "bits": 5e9, "rtt_us": 80}])
    pod.look()
    pod.now += PAUSE_UNENDED_SECONDS


def _never_measured(pod: Pod) -> None:
    pod.stand()
    pod.look()
    pod.now += 20.0


def _rank_ended(pod: Pod) -> None:
    ended = replace(pod.status.ranks[1], state="Exited", exit_code=0)
    pod.status = replace(pod.status, ranks=[pod.status.ranks[0], ended])


def _stopped(pod: Pod) -> None:
    pod.status = replace(pod.status, generation=4, state="Stopping")


def _executor_ended(pod: Pod) -> None:
    pod.status = replace(pod.status, links=LaunchCheck(number=7, running=False, error="ended by signal 9"))
    (pod.folder / PROBE_FILE).unlink()


def _lost(pod: Pod) -> None:
    del pod.rings[4]


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (_late, "rank 5 did not come to the cut in time"),
        (_gave_up, "rank 4 has given the pause up"),
        (_unended, "the operator did not end the pause in time"),
        (_never_measured, "its time is over"),
        (_rank_ended, "rank 5 has ended"),
        (_stopped, "its generation does not run"),
        (_executor_ended, "ended by signal 9"),
        (_lost, "rank 4 is followed no more"),
    ],
)
def test_ranks_go_on_by_themselves(held: Pod, what: Any, why: str) -> None:
    what(held)
    report = held.look()
    assert report.why == why
    assert report.is_open
    assert not held.is_closed
    assert held.probing.seconds_to_next() == float("inf")


def test_an_agent_that_begins_anew_stops_nobody(pod: Pod) -> None:
    assert pod.order("Hold")
    report = pod.look()
    assert report.why == "its agent has restarted"
    assert not pod.is_closed


def test_orders_come_once_and_in_their_order(held: Pod) -> None:
    assert not held.order("Prepare")
    assert not held.order("Hold")
    assert not held.order("Release", number=6)
    assert held.is_closed
    assert held.order("Prepare", number=8), "the next probe ends this one"
    assert not held.is_closed
    assert held.probing.wanted == 8


def test_the_answer_is_forgotten_after_a_while(held: Pod) -> None:
    held.order("Release")
    held.look()
    assert held.probing.report(held.now + 29) is not None
    assert held.probing.report(held.now + 31) is None


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"chain": SimpleNamespace(newest_whole=None)}, "not regular"),
        ({"comms": SimpleNamespace(records=lambda _: [])}, "more calls than are kept"),
    ],
)
def test_what_is_not_known_of_iterations_is_said(fields: dict[str, Any], why: str) -> None:
    whole = SimpleNamespace(calls=SimpleNamespace(numbers=np.arange(4)))
    known = {
        "enqueues": False,
        "chain": SimpleNamespace(newest_whole=whole),
        "comms": None,
        "reader": Ring(1),
        **fields,
    }
    start = start_of(3, SimpleNamespace(**known))  # type: ignore[arg-type]
    assert start.counts is None
    assert why in start.report.why


def of_a_device(done: int) -> Start:
    """Return the start of a rank whose host has begun 14 calls, and of whose device so many are known to be done."""
    cycle = np.zeros(2, dtype=RECORD_DTYPE)
    cycle["comm"], cycle["comm_seq"], cycle["kind"] = 1, (10, 11), Kind.ENQUEUED
    ring = Ring(1)
    ring.finished = done
    whole = SimpleNamespace(calls=SimpleNamespace(numbers=np.arange(2)))
    comms = SimpleNamespace(records=lambda _: cycle, shape=lambda _: None)
    known = {"enqueues": True, "chain": SimpleNamespace(newest_whole=whole), "comms": comms, "reader": ring}
    return start_of(3, SimpleNamespace(**known))  # type: ignore[arg-type]


@pytest.mark.parametrize("done", [8, 10, 14])
def test_iterations_on_a_device_are_known_once_its_calls_are_timed(done: int) -> None:
    start = of_a_device(done)
    assert start.counts == IterationCounts(starts={KEY: 12}, calls={KEY: 2})
    assert start.report.on_device
    assert not start.report.why


def test_a_device_whose_calls_are_not_timed_yet_is_said() -> None:
    start = of_a_device(7)
    assert start.counts is None
    assert start.report.on_device
    assert start.report.why == "it is not known when its device is done with its calls"


def let_the_device_of_rank_5_work_on(pod: Pod) -> None:
    """Let both ranks come to the cut, with one call that the device of rank 5 has not done."""
    pod.enqueues = True
    pod.order("Prepare")
    pod.look()
    pod.order("Hold")
    pod.stand()
    pod.rings[5].finished = 17


def test_a_rank_stands_at_the_cut_when_its_device_has_done_its_calls(pod: Pod) -> None:
    let_the_device_of_rank_5_work_on(pod)
    assert not pod.look().held
    pod.rings[5].finished = 18
    assert pod.look().held


def test_a_device_that_works_on_ends_the_pause(pod: Pod) -> None:
    let_the_device_of_rank_5_work_on(pod)
    report = pod.look(5.1)
    assert report.why == "the device of rank 5 was not done with its calls in time"
    assert not pod.is_closed


def test_targets_are_whole_iterations_beyond_the_start() -> None:
    assert targets_of(COUNTS, 4) == {KEY: 18}


def test_a_rank_with_a_single_counter_may_stop_at_another_call_than_its_iterations_first() -> None:
    assert targets_of(COUNTS, 4, 1) == {KEY: 17}
    several = IterationCounts({**COUNTS.starts, KEY + 1: 5}, {**COUNTS.calls, KEY + 1: 1})
    assert targets_of(several, 4, 1) == {KEY: 18, KEY + 1: 9}
