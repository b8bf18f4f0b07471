"""What a person sees of a job's series: the worst metrics first, when they were odd, and all of it bounded."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from evaluation.anomalies.jobs import MINUTE, Drivers, Recording, series
from falcon_anomaly import judge
from falcon_anomaly.overview import MOST_SCORE, NOTABLE, of_verdicts, overview
from falcon_anomaly.series.board import MOST_RANKS, Board, Phase
from falcon_core.wire import overview as wire
from falcon_core.wire.overview import GAP, LEVELS, MAX_OVERVIEW_BYTES, Map, Overview, OverviewError, Row
from tests.unit.anomalies.service.test_judge import BEGIN, between, job

TWO_HOURS = 7200


def shown(of: Drivers, seconds: float = TWO_HOURS, found: tuple[Row, ...] = ()) -> Overview:
    """Return the overview at the end of a job's windows."""
    recording = Recording(series(of), of.training)
    recording.show(of.windows)
    return overview(recording, 3, found, {}, seconds)


def levels(row: str) -> list[int]:
    return [-1 if letter == GAP else LEVELS.index(letter) for letter in row]


def test_the_worst_metric_of_the_odd_rank_leads_with_its_time_and_its_peers() -> None:
    slow = job()
    slow.slow[4] *= 1 + 0.4 * between(slow, BEGIN, slow.windows)
    found = shown(slow)
    row = next(row for row in found.rows if row.metric == "computation")
    assert (row.rank, row.verdict, row.ended) == (4, "", 0)
    assert row.began == pytest.approx((slow.windows - BEGIN) * 10, abs=120)
    assert row.value == pytest.approx(0.7, rel=0.1)
    assert (row.peers, row.own) == (pytest.approx(0.5, rel=0.1), pytest.approx(0.5, rel=0.1))
    assert row.score > 1
    assert {row.rank for row in found.rows if row.score > 1} == {4}
    shown_map = next(each for each in found.maps if each.metric == "computation")
    assert shown_map.ranks == list(range(6))
    assert min(levels(shown_map.rows[4])[-5:]) >= 4
    assert max(max(levels(row)) for rank, row in enumerate(shown_map.rows) if rank != 4) < 4
    assert found.generation == 3
    assert (found.seconds, found.column_seconds, found.compared) == (TWO_HOURS, 120, found.metrics)


def test_what_is_over_is_shown_with_its_end_though_the_judge_has_nothing_to_say() -> None:
    past = job()
    past.throttled[3] += 0.8 * between(past, BEGIN, BEGIN + 5 * MINUTE)
    found = shown(past)
    row = found.rows[0]
    assert (row.metric, row.rank) == ("cpu_throttled", 3)
    assert row.ended == pytest.approx((past.windows - BEGIN - 5 * MINUTE) * 10, abs=120)
    assert row.began - row.ended == pytest.approx(300, abs=120)
    later = shown(past, seconds=600)
    assert not [row for row in later.rows if row.metric == "cpu_throttled"], "it was before these ten minutes"
    assert (later.seconds, later.column_seconds) == (600, 10)


def test_a_healthy_job_has_maps_and_an_empty_table() -> None:
    found = shown(job())
    assert found.rows == []
    assert len(found.maps) == wire.MAX_MAPS
    assert max(max(levels(row)) for each in found.maps for row in each.rows) < 4 * NOTABLE


def test_a_metric_with_a_verdict_comes_first_and_is_no_second_row() -> None:
    slow = job()
    slow.slow[4] *= 1 + 0.4 * between(slow, BEGIN, slow.windows)
    slow.throttled[1] += 0.2 * between(slow, BEGIN, slow.windows)
    recording = Recording(series(slow), slow.training)
    recording.show(slow.windows)
    verdicts, state = judge.look(recording, judge.State(), recording.newest_seconds)
    standing: dict[str, dict[int, judge.Usual]] = {}
    for (rank, metric), one in state.standing.items():
        standing.setdefault(metric, {})[rank] = one.usual
    rows = list(of_verdicts(verdicts, 7.0))
    assert [(row.metric, row.rank, row.verdict) for row in rows] == [
        ("cpu_throttled", 1, "differs"),
        ("computation", 4, "differs"),
    ]
    assert rows[0].began == round(verdicts[0].since_seconds_ago + 7)
    found = overview(recording, 1, rows, standing, TWO_HOURS)
    assert found.rows[:2] == rows
    assert not {("cpu_throttled", 1), ("computation", 4)} & {(row.metric, row.rank) for row in found.rows[2:]}
    assert {each.metric for each in found.maps[:2]} == {"cpu_throttled", "computation"}


def test_where_time_is_short_the_metric_with_a_verdict_is_compared() -> None:
    of = job()
    recording = Recording(series(of), of.training)
    recording.show(of.windows)
    turns = iter((True, True, False))
    rows = [Row(metric="threads", rank=1, verdict="differs")]
    found = overview(recording, 1, rows, {}, TWO_HOURS, lambda: next(turns))
    assert found.compared == 2 < found.metrics
    assert found.maps[0].metric == "threads"


def test_windows_without_training_are_gaps() -> None:
    resting = job()
    resting.training[-MINUTE:] = False
    (first, *_) = shown(resting, seconds=600).maps
    assert all(row.endswith(6 * GAP) and GAP not in row[:-6] for row in first.rows)


def test_too_short_a_history_compares_nothing_and_says_how_long_it_is() -> None:
    found = shown(job(windows=4 * MINUTE))
    assert (found.compared, found.maps, found.rows) == (0, [], [])
    assert found.training_seconds <= 240
    assert found.metrics > 0


@pytest.mark.parametrize("name", ["loss", "output:skipped"])
def test_a_number_that_is_mostly_zero_is_not_compared(name: str) -> None:
    board = Board(3)
    board.set_phase(0.0, 10.0 * board.windows, Phase.TRAINING)
    for window in range(board.windows):
        for rank in range(3):
            value = 5.0 if (rank, window) == (1, board.windows - 3) else 0.0
            board.add(rank, 10.0 * (window + 1), {name: (value,) * 3})
    found = overview(board, 1, [], {}, 600)
    assert (found.metrics, found.compared, found.rows, found.maps) == (1, 0, [], [])


def test_a_difference_beyond_all_bounds_has_a_finite_score() -> None:
    board = Board(3)
    board.set_phase(0.0, 10.0 * board.windows, Phase.TRAINING)
    for window in range(board.windows):
        for rank in range(3):
            value = 1e37 if (rank, window) == (1, board.windows - 3) else 1e-30
            board.add(rank, 10.0 * (window + 1), {"output:x": (value,) * 3})
    found = overview(board, 1, [], {}, 600)
    assert [(row.rank, row.score) for row in found.rows] == [(1, MOST_SCORE)]
    assert wire.decode_overview(wire.encode_overview(found)) == found


def test_the_largest_board_gives_an_answer_within_the_bounds() -> None:
    """Each rank of ten thousand is odd in each metric, and names are as long as they may be."""
    board = Board(MOST_RANKS, most_values=8 * 90 * MOST_RANKS)  # room for eight metrics
    board.set_phase(0.0, 10.0 * board.windows, Phase.TRAINING)
    noise = np.random.default_rng(1).standard_normal((wire.MAX_MAPS + 2, board.ranks, board.windows)).astype(np.float32)
    for number, values in enumerate(noise):
        name = str(number) + 63 * "é"
        board.add(0, 10.0 * board.windows, {name: (1.0, 1.0, 1.0)})
        board._series[name][0] = 1000.0 * np.exp(values)
    rows = [Row(metric="é" * 64, rank=1 << 30, verdict="differs", value=1e300, score=1e9)] * 40
    raw = wire.encode_overview(overview(board, 1 << 30, rows, {}, TWO_HOURS))
    assert len(raw) < MAX_OVERVIEW_BYTES / 2
    found = wire.decode_overview(raw)
    assert (len(found.rows), len(found.maps)) == (wire.MAX_ROWS, wire.MAX_MAPS)
    assert {len(each.ranks) for each in found.maps} == {wire.MAX_RANKS}
    assert {len(row) for each in found.maps for row in each.rows} <= set(range(1, wire.MAX_COLUMNS + 1))


GOOD = Overview(
    generation=1,
    seconds=60,
    column_seconds=10,
    ranks=2,
    metrics=1,
    compared=1,
    training_seconds=60,
    maps=[Map(metric="cpu", ranks=[0, 1], rows=["01.", "zz0"])],
)


@pytest.mark.parametrize(
    "spoilt",
    [
        b"",
        b"{}",
        b"[" * 100_000,
        b" " * (MAX_OVERVIEW_BYTES + 1),
        wire.encode_overview(GOOD).replace(b"zz0", b"zz"),
        wire.encode_overview(GOOD).replace(b"zz0", b"z\\n0"),
        wire.encode_overview(GOOD).replace(b"[0,1]", b"[0,1,2]"),
        wire.encode_overview(GOOD).replace(b"[0,1]", b"[0,-1]"),
        wire.encode_overview(GOOD).replace(b'"zz0"', b",".join([b'"zz0"'] * 17)),
        wire.encode_overview(GOOD).replace(b"zz0", b"0" * 61),
        wire.encode_overview(GOOD).replace(b'"cpu"', b'"' + b"c" * 65 + b'"'),
    ],
)
def test_an_answer_out_of_bounds_is_refused_whole(spoilt: bytes) -> None:
    assert wire.decode_overview(wire.encode_overview(GOOD)) == GOOD
    with pytest.raises(OverviewError):
        wire.decode_overview(spoilt)


def test_fields_of_a_later_release_are_left_out() -> None:
    later = {**msgspec.to_builtins(GOOD), "more": 1}
    assert wire.decode_overview(msgspec.json.encode(later)) == GOOD
