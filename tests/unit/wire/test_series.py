"""What a chunk of series keeps, how large it may be, and which bytes are none."""

from __future__ import annotations

import math
import zlib
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.wire.series import (
    CONTAINER,
    MAX_AGE_MS,
    MAX_BYTES,
    MAX_METRICS,
    MAX_NAME,
    MAX_PLAIN_BYTES,
    MAX_RANKS,
    MAX_SERIES,
    MAX_WINDOWS,
    WINDOWS,
    Chunk,
    Phase,
    SeriesFormatError,
    Window,
    decode_chunk,
    encode_chunk,
    metric_name,
)

TRAINING = [Phase.TRAINING] * WINDOWS
_NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
_FINITE = st.floats(min_value=-1e30, max_value=1e30)


def coded(series: dict[int, dict[str, list[Window | None]]], phases: list[Phase], **changed: int) -> Chunk:
    fields = {"generation": 3, "number": 7, "age_ms": 250, **changed}
    return decode_chunk(encode_chunk(series, phases, **fields))


@st.composite
def windows(draw: st.DrawFn) -> Window:
    low, middle, high = sorted(draw(st.tuples(_FINITE, _FINITE, _FINITE)))
    return Window(middle, low, high)


@st.composite
def pods(draw: st.DrawFn) -> tuple[dict[int, dict[str, list[Window | None]]], list[Phase]]:
    phases = draw(st.lists(st.sampled_from(Phase), min_size=1, max_size=MAX_WINDOWS))
    row = st.lists(st.none() | windows(), min_size=len(phases), max_size=len(phases))
    names = st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=MAX_NAME)
    rows = st.dictionaries(names, row, max_size=4)
    return draw(st.dictionaries(st.integers(CONTAINER, 1 << 20), rows, max_size=4)), phases


@given(pods())
def test_a_chunk_holds_what_was_put_into_it(pod: tuple[dict[int, dict[str, list[Window | None]]], list[Phase]]) -> None:
    series, phases = pod
    chunk = coded(series, phases)
    assert (chunk.generation, chunk.number, chunk.age_ms) == (3, 7, 250)
    assert chunk.phases == tuple(phases)
    assert chunk.ranks == tuple(sorted(series))
    assert set(chunk.metrics) == {name for rows in series.values() for name in rows}
    assert chunk.values.shape == (len(series), len(chunk.metrics), len(phases), 3)
    for row, rank in enumerate(chunk.ranks):
        for column, name in enumerate(chunk.metrics):
            for place, window in enumerate(series[rank].get(name, [None] * len(phases))):
                assert chunk.known[row, column, place] == (window is not None)
                if window is None:
                    assert np.isnan(chunk.values[row, column, place]).all()
                else:
                    assert_close(chunk.values[row, column, place], window)


def assert_close(read: Any, window: Window) -> None:
    """Check a window that was read: the median to 2^-15, each distance from it to 2^-8 and what float32 keeps."""
    median, low, high = (float(each) for each in read)
    assert low <= median <= high
    assert median == pytest.approx(window.median, rel=2**-15, abs=1e-37)
    for bound, wanted in ((low, window.minimum), (high, window.maximum)):
        spread = abs(wanted - window.median)
        assert abs(bound - wanted) <= 2**-8 * spread + 2**-14 * abs(window.median) + 1e-36


@given(st.tuples(_NUMBERS, _NUMBERS, _NUMBERS))
def test_whatever_a_window_holds_is_finite_or_nan_when_it_is_read(numbers: tuple[float, float, float]) -> None:
    chunk = coded({0: {"loss": [Window(*numbers)]}}, [Phase.TRAINING])
    assert chunk.known.all()
    assert not np.isinf(chunk.values).any()
    if not math.isfinite(numbers[0]):
        assert math.isnan(chunk.values[0, 0, 0, 0])


def test_a_number_that_was_no_number_is_told_apart_from_one_that_was_not_read() -> None:
    chunk = coded({0: {"loss": [Window(math.nan, math.nan, math.nan), None]}}, TRAINING[:2])
    assert chunk.known.tolist() == [[[True, False]]]
    mixed = coded({0: {"loss": [Window(2.5, 2.0, math.nan)]}}, TRAINING[:1])
    assert mixed.values[0, 0, 0, :2].tolist() == [2.5, 2.0]
    assert math.isnan(mixed.values[0, 0, 0, 2])


def test_losses_that_differ_by_a_ten_thousandth_stay_apart() -> None:
    first, second = (Window(value, value, value) for value in (2.3456, 2.34585))
    chunk = coded({0: {"loss": [first]}, 1: {"loss": [second]}}, TRAINING[:1])
    assert chunk.values[0, 0, 0, 0] < chunk.values[1, 0, 0, 0]


@pytest.mark.parametrize("ranks", [1, 8, 64])
def test_twenty_metrics_take_less_than_a_kibibyte_a_rank_and_minute(ranks: int) -> None:
    rng = np.random.default_rng(7)

    def noise() -> Window:  # over many orders of magnitude: nothing that could be compressed
        low, middle, high = sorted(rng.lognormal(0, 3, 3))
        return Window(middle, low, high)

    series = {
        rank: {f"a_name_of_metric_{metric:02d}": [noise() for _ in range(WINDOWS)] for metric in range(20)}
        for rank in range(ranks)
    }
    assert len(encode_chunk(series, TRAINING, generation=1, number=1, age_ms=0)) <= 1024 * ranks


def test_more_ranks_and_metrics_than_a_chunk_holds_are_left_out() -> None:
    window: list[Window | None] = [Window(1, 1, 1)]
    many = {rank: {f"m{metric:03d}": window for metric in range(70)} for rank in range(MAX_RANKS + 5)}
    chunk = coded(many, TRAINING[:1])
    assert len(chunk.ranks) == MAX_RANKS
    assert len(chunk.metrics) == MAX_SERIES // MAX_RANKS
    assert chunk.known.all()
    assert len(coded({0: many[0]}, TRAINING[:1]).metrics) == MAX_METRICS


def test_a_chunk_without_series_says_that_the_agent_has_none() -> None:
    chunk = coded({}, TRAINING)
    assert (chunk.ranks, chunk.metrics, len(chunk.phases)) == ((), (), WINDOWS)


def test_what_the_agent_cannot_mean_is_refused_when_it_is_encoded() -> None:
    for series, phases in (({}, []), ({}, TRAINING * 3), ({0: {"loss": [None]}}, TRAINING)):
        with pytest.raises(ValueError, match="windows"):
            encode_chunk(series, phases, generation=1, number=1, age_ms=0)


def test_an_age_beyond_the_bound_is_cut() -> None:
    assert coded({}, TRAINING, age_ms=1 << 40).age_ms == MAX_AGE_MS
    assert coded({}, TRAINING, age_ms=-5).age_ms == 0


def plain(**changed: object) -> list[object]:
    """Return the fields of a chunk with one series, before it is compressed."""
    fields: dict[str, object] = {
        "generation": 1,
        "number": 1,
        "age_ms": 0,
        "phases": b"\x00",
        "ranks": [0],
        "metrics": ["loss"],
        "present": b"\x80",
        "data": bytes(7),
    }
    return list({**fields, **changed}.values())


def sent(fields: object, version: bytes = b"\x01") -> bytes:
    return version + zlib.compress(msgspec.msgpack.encode(fields))


def test_the_fields_of_a_later_agent_are_ignored() -> None:
    assert decode_chunk(sent([*plain(), "more"])).metrics == ("loss",)
    assert decode_chunk(sent(plain(phases=b"\x63"))).phases == (Phase.OTHER,)


@pytest.mark.parametrize(
    "changed",
    [
        {"generation": -1},
        {"age_ms": MAX_AGE_MS + 1},
        {"phases": b""},
        {"phases": bytes(MAX_WINDOWS + 1), "data": bytes(7 * (MAX_WINDOWS + 1))},
        {"ranks": [-2]},
        {"ranks": [1, 1], "present": b"\xc0", "data": bytes(14)},
        {"ranks": list(range(MAX_RANKS + 1)), "metrics": [], "present": b"", "data": b""},
        {"ranks": list(range(MAX_SERIES // 64 + 1)), "metrics": [f"m{n}" for n in range(64)], "present": bytes(1024)},
        {"metrics": ["loss", "loss"], "present": b"\xc0", "data": bytes(14)},
        {"metrics": ["\x1b[2J"]},
        {"metrics": ["x" * (MAX_NAME + 1)]},
        {"metrics": [""]},
        {"metrics": ["m"] * (MAX_METRICS + 1)},
        {"present": b""},
        {"present": b"\x80\x00"},
        {"present": b"\x00"},
        {"data": bytes(6)},
        {"data": bytes(14)},
    ],
)
def test_what_is_beyond_the_bounds_is_not_read(changed: dict[str, object]) -> None:
    decode_chunk(sent(plain()))
    with pytest.raises(SeriesFormatError):
        decode_chunk(sent(plain(**changed)))


def test_a_bomb_is_not_inflated() -> None:
    bomb = sent(plain(data=bytes(4 * MAX_PLAIN_BYTES)))
    assert len(bomb) < MAX_BYTES
    with pytest.raises(SeriesFormatError, match=str(MAX_PLAIN_BYTES)):
        decode_chunk(bomb)


def test_bytes_of_another_format_say_so() -> None:
    with pytest.raises(SeriesFormatError, match="release"):
        decode_chunk(sent(plain(), version=b"\x02"))
    with pytest.raises(SeriesFormatError, match="at most"):
        decode_chunk(bytes(MAX_BYTES + 1))


@given(st.binary(max_size=400) | st.binary(max_size=200).map(lambda raw: b"\x01" + zlib.compress(raw)))
def test_arbitrary_bytes_are_refused_as_no_chunk(raw: bytes) -> None:
    with pytest.raises(SeriesFormatError):
        decode_chunk(raw)


@given(st.binary(min_size=7, max_size=7))
def test_each_value_is_read_as_a_window_in_order(data: bytes) -> None:
    chunk = decode_chunk(sent(plain(data=data)))
    median, low, high = chunk.values[0, 0, 0].tolist()
    assert not any(math.isinf(each) for each in (median, low, high))
    if not any(math.isnan(each) for each in (median, low, high)):
        assert low <= median <= high


@given(st.text(max_size=200))
def test_names_are_printable_and_bounded_and_stay_as_they_are(text: str) -> None:
    name = metric_name(text)
    assert len(name) <= MAX_NAME
    assert name.isprintable()
    assert metric_name(name) == name


def test_a_name_shows_no_secret_and_no_control_character() -> None:
    hostile = decode_chunk(sent(plain(metrics=["\x1b[31mdisk /data\x07"])))
    assert hostile.metrics == ("disk /data",)
