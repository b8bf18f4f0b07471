"""Define what the anomaly service tells the operator: which ranks differ, in which of their series, and by how much.

The answer is JSON. The service compares what jobs' own pods have sent, so its size, counts and texts are bounded, as
those of a report are. Clocks differ, so a verdict has a duration and no time of day. Nothing in it orders a repair.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from falcon_core.wire.bounded_json import BoundedDecoder

MAX_JOBS: Final = 2048  # of an answer: of those about which there is something to tell
MAX_VERDICTS: Final = 32  # of a job
MAX_ANSWER_BYTES: Final = 8 << 20
MAX_METRIC: Final = 64
OF_THE_JOB: Final = -1  # stands for a rank: the verdict is about all of them

_Name = Annotated[str, Meta(max_length=MAX_METRIC)]
_Word = Annotated[str, Meta(min_length=1, max_length=32)]
_Seconds = Annotated[int, Meta(ge=0, le=1 << 32)]


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One finding of the service about a rank, or about the whole job.

    Values are in the metric's own unit. A score is a multiple of what healthy windows show: from 1 on it is an anomaly.
    """

    kind: _Word  # for machines; a later service may know more
    rank: Annotated[int, Meta(ge=OF_THE_JOB, le=(1 << 31) - 1)]
    metric: _Name = ""
    lasted: _Seconds = 0  # for how long it had been so when the answer was made
    value: float | None = None  # the median since then
    peers: float | None = None  # the other ranks' median at the same time
    own: float | None = None  # the rank's own median before
    peers_score: float = 0.0
    own_score: float = 0.0
    detectors: Annotated[list[_Word], Meta(max_length=8)] = []  # those that agree
    also: Annotated[list[_Name], Meta(max_length=8)] = []  # further metrics of the rank that differ


class JobVerdicts(msgspec.Struct, frozen=True, kw_only=True):
    """What the service finds of one job; ``generation`` says whose processes are meant."""

    uid: Annotated[str, Meta(min_length=1, max_length=64)]
    namespace: Annotated[str, Meta(max_length=253)]
    name: Annotated[str, Meta(max_length=253)]
    generation: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
    verdicts: Annotated[list[Verdict], Meta(max_length=MAX_VERDICTS)]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs of which the service has something to tell."""

    jobs: Annotated[list[JobVerdicts], Meta(max_length=MAX_JOBS)] = []


class VerdictsError(ValueError):
    """The error of an answer that is none, or goes beyond the bounds."""


_encoder = msgspec.json.Encoder()
_decoder = BoundedDecoder(Answer, noun="an answer", most_bytes=MAX_ANSWER_BYTES, error=VerdictsError)


def encode_answer(answer: Answer) -> bytes:
    """Encode an answer as JSON; of an answer beyond ``MAX_ANSWER_BYTES`` each job keeps as many verdicts as fit."""
    raw, most = _encoder.encode(answer), MAX_VERDICTS
    # It would be refused whole: one job's long names would cost all others their verdicts.
    while len(raw) > MAX_ANSWER_BYTES and most > 1:
        most //= 2
        shorter = [msgspec.structs.replace(job, verdicts=job.verdicts[:most]) for job in answer.jobs]
        raw = _encoder.encode(Answer(jobs=shorter))
    return raw


def decode_answer(raw: bytes) -> Answer:
    """Decode an answer. Unknown fields are those of a later release and are left out.

    Raises:
        VerdictsError: The bytes are no answer, or one that goes beyond the bounds.
    """
    return _decoder.decode(raw)
