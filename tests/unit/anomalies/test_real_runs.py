"""Recordings of real runs: how they are kept, replayed to the service's code, and judged."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from evaluation.anomalies import real_runs, recording
from evaluation.anomalies.real_runs import Outcome, Said, agents_said, looks, outcome, thresholds
from evaluation.anomalies.record.__main__ import claimed
from evaluation.anomalies.record.scenes import FAULT, LEARN, QUIET, SCENES
from evaluation.anomalies.recording import Findings, Lane, Message, Truth
from falcon_core.wire.reporting.anomalies import Anomaly
from falcon_core.wire.series import WINDOW_SECONDS, WINDOWS, Phase, Window, encode_chunk
from falcon_gateway import Chunk

SECONDS, BEGIN, RANK = 1200.0, 780.0, 2


def truth(
    name: str = "fault-cpu-thief", fault: str = "cpu-thief", rank: int | None = RANK, seen: bool = False
) -> Truth:
    return Truth(
        name=name,
        group=FAULT if fault else LEARN,
        variant="plain",
        fault=fault,
        rank=rank,
        metrics=["cpu"] if fault else [],
        begin_seconds=BEGIN if fault else None,
        seconds=SECONDS,
        ranks=4,
        date="2026-12-01 21:00 UTC",
        commit="0123abcd",
        machine="a machine",
        load=[1.0, 2.0],
        looked_at=seen,
    )


def lane(odd: bool = True, seed: int = 1) -> Lane:
    """Return what four pods of one rank send each minute; from ``BEGIN`` on, ``RANK`` uses a quarter of the CPU."""
    random, messages = np.random.default_rng(seed), []
    for number, rank in itertools.product(range(int(SECONDS / WINDOW_SECONDS / WINDOWS)), range(4)):
        ends = [(number * WINDOWS + window + 1) * WINDOW_SECONDS for window in range(WINDOWS)]
        share = [0.25 if odd and rank == RANK and end > BEGIN else 1.0 for end in ends]
        values = [float(each * random.normal(1.0, 0.01)) for each in share]
        payload = encode_chunk(
            {rank: {"cpu": [Window(value, value, value) for value in values]}},
            [Phase.TRAINING] * WINDOWS,
            generation=1,
            number=number,
            age_ms=100,
        )
        chunk = Chunk(namespace="ns", job="gpt", job_uid="u", pod_uid=f"gpt-p{rank}", payload=payload)
        messages.append(Message(round(1e3 * ends[-1]) + 100 + rank, chunk.SerializeToString()))
    return Lane(messages, [])


def test_a_recording_is_read_as_it_was_kept_and_without_its_truth_there_is_none(tmp_path: Path) -> None:
    kept = Lane(lane().messages, [Findings(5, "gpt-p1", [Anomaly(kind="Memory", rank=-1, left=60)])])
    recording.save(tmp_path, truth(), kept)
    recording.save(tmp_path, truth("learn-01", fault=""), lane(odd=False))
    assert recording.names(tmp_path) == ["fault-cpu-thief", "learn-01"]
    assert recording.load(tmp_path, "fault-cpu-thief") == (truth(), kept)
    (tmp_path / "learn-01.json").unlink()
    assert [each.name for each, _ in recording.load_all(tmp_path)] == ["fault-cpu-thief"]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OSError, match="no space"):
        recording.save(tmp_path, truth(), lane())
    assert list(tmp_path.iterdir()) == []


def test_two_recorders_never_make_one_run_and_none_makes_it_again(tmp_path: Path) -> None:
    scene = SCENES[0]
    with claimed(tmp_path, scene) as first, claimed(tmp_path, scene) as second:
        assert (first, second) == (True, False)
    recording.save(tmp_path, truth(scene.name, fault=""), lane(odd=False))
    with claimed(tmp_path, scene) as again:
        assert not again
    assert not list(tmp_path.glob(".*"))


def test_the_scenes_are_those_of_the_experiment() -> None:
    names = [scene.name for scene in SCENES]
    assert len(names) == len(set(names)) == 13 + 11 + 13 + 2
    for scene in SCENES:
        begin = scene.begin(900.0)
        assert bool(scene.fault) == (scene.group == FAULT) == (begin is not None) == bool(scene.metrics)
        assert begin is None or scene.fault == "slow-start" or 120 < begin < 600
    assert {scene.group for scene in SCENES[:5]} >= {LEARN, FAULT, QUIET}, "each group has some early"


def test_a_replay_names_the_rank_by_the_services_own_code() -> None:
    found = outcome(truth(), real_runs._ours(list(looks(truth(), lane()))))
    assert found.seconds is not None
    assert 90 <= found.seconds <= 240
    assert (found.metric, found.first, found.false) == (True, True, 0)
    healthy = list(looks(truth("learn-01", fault="", rank=None), lane(odd=False)))
    assert not any(look.verdicts for look in healthy)
    assert not any(look.scores for look in healthy if look.at < 600), "as the service"
    above = thresholds([healthy])
    assert real_runs.detectors_said(healthy, above)[real_runs.DETECTORS[0]] == []
    assert real_runs.detectors_said(list(looks(truth(), lane())), above)[real_runs.DETECTORS[0]]


def test_the_same_recording_gives_the_same_looks() -> None:
    assert list(looks(truth(), lane())) == list(looks(truth(), lane()))


def test_alarms_before_the_fault_and_on_other_ranks_are_false_and_are_counted_once() -> None:
    others = frozenset((1,))
    said = [Said(700, others), Said(710, others), Said(800, others), Said(900, frozenset((RANK,)), "cpu:x")]
    assert outcome(truth(), said) == Outcome(120.0, True, False, 2)
    assert outcome(truth(), said[-1:]) == Outcome(120.0, True, True, 0)
    assert outcome(truth(), [Said(900, frozenset((RANK,)), "memory")]) == Outcome(120.0, False, True, 0)
    assert outcome(truth(rank=None), said[2:3]) == Outcome(20.0, False, True, 0), "a fault of all names any rank"
    assert outcome(truth(fault="", rank=None), said) == Outcome(None, False, False, 2)


def test_what_an_agent_finds_of_its_container_is_its_ranks() -> None:
    found = Lane(lane().messages[:4], [Findings(800_000, "gpt-p2", [Anomaly(kind="Memory", rank=-1)])])
    (said,) = agents_said(truth(fault="memory-leak"), found)
    assert said == Said(800.0, frozenset((2,)), "cpu"), "the first metric of the truth stands for the fault"
    (other,) = agents_said(truth(fault="nan"), found)
    assert other.metric == "Memory"


def test_a_table_of_no_recordings_has_no_limit(tmp_path: Path) -> None:
    assert real_runs.real_runs(tmp_path).measures == ()
    recording.save(tmp_path, truth(), lane())
    recording.save(tmp_path, truth("learn-01", fault="", rank=None), lane(odd=False, seed=2))
    made = real_runs.real_runs(tmp_path)
    assert "2 of 39 runs are recorded" in made.text
    assert "| cpu-thief | 2 |" in made.text
    assert [measure.kept for measure in made.measures] == [True]
