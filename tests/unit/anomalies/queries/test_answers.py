"""Answers of Prometheus are read within bounds, whatever they are."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from falcon_anomaly.queries import answers
from falcon_anomaly.queries.answers import MOST_BYTES, QueryError, TooLargeError, decode, refusal

ENDS = 1_700_000_000.0 + 10.0 * np.arange(4)


def matrix(*values: list[Any], kind: str = "matrix", status: str = "success") -> bytes:
    result = [{"metric": {"pod": f"p{at}"}, "values": each} for at, each in enumerate(values)]
    return json.dumps({"status": status, "data": {"resultType": kind, "result": result}}).encode()


def test_values_stand_at_their_windows_and_those_that_are_missing_or_not_finite_are_none() -> None:
    raw = matrix([[ENDS[0], "1.5"], [ENDS[2], "NaN"], [ENDS[3], "1e300"]], [[ENDS[1] + 0.001, "-2"], [ENDS[3], "+Inf"]])
    first, second = decode(raw, ENDS)
    assert (first.labels, second.labels) == ({"pod": "p0"}, {"pod": "p1"})
    np.testing.assert_array_equal(first.values, np.array([1.5, np.nan, np.nan, np.nan], np.float32))
    np.testing.assert_array_equal(second.values, np.array([np.nan, -2.0, np.nan, np.nan], np.float32))


def test_times_that_were_not_asked_for_are_left_out() -> None:
    (only,) = decode(matrix([[ENDS[0] - 10, "1"], [ENDS[3] + 10, "2"], [1e308, "3"], [-1e308, "4"]]), ENDS)
    assert np.isnan(only.values).all()


def test_a_question_about_one_moment_has_one_window() -> None:
    (only,) = decode(matrix([[ENDS[0], "7"]]), ENDS[:1])
    assert only.values.tolist() == [7.0]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"<html>502 Bad Gateway</html>",
        b"[" * 100_000,
        b'{"status":"success"}',
        matrix(kind="vector"),
        matrix(kind="scalar"),
        matrix(status="error"),
        matrix([[ENDS[0], 5]]),
        matrix([[ENDS[0], "five"]]),
        matrix([["now", "5"]]),
        b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"pod":1},"values":[]}]}}',
        b'\xff{"status":"success"}',
        b" " * (MOST_BYTES + 1),
    ],
)
def test_what_is_no_matrix_is_refused(raw: bytes) -> None:
    with pytest.raises(QueryError):
        decode(raw, ENDS)


def test_more_series_than_are_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_SERIES", 2)
    assert len(decode(matrix([], []), ENDS)) == 2
    with pytest.raises(TooLargeError, match="aggregate or filter"):
        decode(matrix([], [], []), ENDS)


def test_a_refusal_has_the_servers_words_cut_and_without_secrets() -> None:
    said = json.dumps({"status": "error", "error": "parse error: password=hunter2 " + "x" * 500}).encode()
    shown = refusal(400, said)
    assert shown.startswith("HTTP status 400: parse error")
    assert "hunter2" not in shown
    assert len(shown) < 250
    assert refusal(502, b"<html>") == "HTTP status 502"
