"""The anomaly service's answer: what is read, and what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from falcon_core.wire.verdicts import (
    MAX_ANSWER_BYTES,
    MAX_VERDICTS,
    OF_THE_JOB,
    Answer,
    JobVerdicts,
    Verdict,
    VerdictsError,
    decode_answer,
    encode_answer,
)

VERDICT = {"kind": "differs", "rank": 3, "metric": "cpu", "lasted": 60, "value": 0.3, "peers": None}
JOB: dict[str, Any] = {"uid": "u", "namespace": "team", "name": "gpt2", "generation": 1, "verdicts": [VERDICT]}


def read(**changes: Any) -> Answer:
    return decode_answer(json.dumps({"jobs": [{**JOB, **changes}]}).encode())


def test_an_answer_comes_back_as_it_was() -> None:
    found = Verdict(kind="loss-spike", rank=OF_THE_JOB, metric="loss", value=9.5, own=2.0, detectors=["profile"])
    answer = Answer(jobs=[JobVerdicts(uid="u", namespace="n", name="j", generation=2, verdicts=[found])])
    assert decode_answer(encode_answer(answer)) == answer


def test_an_answer_beyond_the_bound_keeps_some_verdicts_of_each_job() -> None:
    long = Verdict(kind="differs", rank=7, metric="\N{GREEK SMALL LETTER OMEGA}" * 64, also=["x" * 64] * 8)
    several = [
        JobVerdicts(uid=str(number), namespace="n", name="j", generation=1, verdicts=[long] * MAX_VERDICTS)
        for number in range(400)
    ]
    read = decode_answer(encode_answer(Answer(jobs=several)))
    assert [job.uid for job in read.jobs] == [job.uid for job in several]
    assert all(job.verdicts for job in read.jobs)


def test_fields_of_a_later_service_are_left_out() -> None:
    (job,) = read(verdicts=[{**VERDICT, "kind": "of-later", "confidence": 0.5}]).jobs
    assert job.verdicts[0].kind == "of-later"


@pytest.mark.parametrize(
    "changes",
    [
        {"uid": ""},
        {"uid": 7},
        {"generation": -1},
        {"name": "x" * 254},
        {"verdicts": [VERDICT] * (MAX_VERDICTS + 1)},
        {"verdicts": [{**VERDICT, "rank": -2}]},
        {"verdicts": [{**VERDICT, "rank": "3"}]},
        {"verdicts": [{**VERDICT, "metric": "m" * 65}]},
        {"verdicts": [{**VERDICT, "lasted": -1}]},
        {"verdicts": [{**VERDICT, "value": "much"}]},
        {"verdicts": [{**VERDICT, "also": ["a"] * 9}]},
        {"verdicts": [{"rank": 0}]},
    ],
    ids=lambda changes: str(changes)[:40],
)
def test_what_goes_beyond_the_bounds_is_refused_whole(changes: dict[str, Any]) -> None:
    with pytest.raises(VerdictsError):
        read(**changes)


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"\xff\xfe", b'{"jobs":', b"<html>no</html>", b"[" * 100_000, b" " * (MAX_ANSWER_BYTES + 1)],
    ids=["empty", "a list", "no text", "cut short", "a page", "deep", "large"],
)
def test_bytes_that_are_no_answer_are_refused(raw: bytes) -> None:
    with pytest.raises(VerdictsError):
        decode_answer(raw)


def test_a_number_that_json_does_not_have_is_refused() -> None:
    with pytest.raises(VerdictsError):
        decode_answer(json.dumps({"jobs": [{**JOB, "verdicts": [{**VERDICT, "value": float("nan")}]}]}).encode())
