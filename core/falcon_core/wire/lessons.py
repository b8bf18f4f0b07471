"""Define how the operator lets the anomaly service learn: what it knows of the jobs, and what was learned before.

The service has no rights in the cluster. So the operator reads a ConfigMap, passes its data on with the kind and the
health of each job, and writes what the service returns. Both messages are JSON and bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from falcon_core.job_kind import PATTERN
from falcon_core.wire.bounded_json import BoundedDecoder

MAX_JOBS: Final = 2048  # of a lesson
MAX_MODELS_BYTES: Final = 256 << 10  # of all kinds together, with their names
MAX_MESSAGE_BYTES: Final = 2 << 20  # of a lesson, or of its answer, as JSON

_Kind = Annotated[str, Meta(pattern=f"^{PATTERN.pattern}$")]
Models = dict[_Kind, str]  # what was learned, by kind, as the service has written it


class JobLesson(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the operator knows of one job."""

    uid: Annotated[str, Meta(min_length=1, max_length=64)]
    generation: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
    kind: _Kind
    quiet: bool  # since the last lesson the job has had no incident, no failure and no repair


class Lesson(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator knows. The jobs are those whose ranks live."""

    day: Annotated[int, Meta(ge=0, le=1 << 31)]  # since 1970, by the operator's clock
    jobs: Annotated[list[JobLesson], Meta(max_length=MAX_JOBS)]
    models: Models


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """What the service answers; ``models`` is None where nothing has changed."""

    models: Models | None = None


class LessonError(ValueError):
    """The error of a message that is none, or goes beyond the bounds."""


_encoder = msgspec.json.Encoder()
_lessons = BoundedDecoder(Lesson, noun="a lesson", most_bytes=MAX_MESSAGE_BYTES, error=LessonError)
_answers = BoundedDecoder(Learned, noun="an answer", most_bytes=MAX_MESSAGE_BYTES, error=LessonError)


def encode_lesson(lesson: Lesson) -> bytes:
    """Encode a lesson as JSON."""
    return _encoder.encode(lesson)


def encode_learned(learned: Learned) -> bytes:
    """Encode an answer as JSON."""
    return _encoder.encode(learned)


def decode_lesson(raw: bytes) -> Lesson:
    """Decode a lesson. Raises LessonError for what is none, or too large."""
    found = _lessons.decode(raw)
    _check(found.models)
    return found


def decode_learned(raw: bytes) -> Learned:
    """Decode an answer. Raises LessonError for what is none, or too large."""
    found = _answers.decode(raw)
    _check(found.models or {})
    return found


def models_bytes(models: Mapping[str, str]) -> int:
    """Return how many bytes the data of the ConfigMap take, as the API server counts them."""
    return sum(len(kind) + len(text.encode(errors="replace")) for kind, text in models.items())


def readable(data: Mapping[str, str]) -> Models:
    """Return the entries of a ConfigMap's data whose names are kinds, as many as the bounds allow.

    Other entries are foreign: another writer has put them there. An entry for which there is no room is left out, and
    the smaller ones after it are not.
    """
    found: Models = {}
    room = MAX_MODELS_BYTES
    for kind, text in sorted(data.items()):
        if PATTERN.fullmatch(kind):
            size = models_bytes({kind: text})
            if size <= room:
                room -= size
                found[kind] = text
    return found


def _check(models: Mapping[str, str]) -> None:
    size = models_bytes(models)
    if size > MAX_MODELS_BYTES:
        raise LessonError(f"models of {size} bytes: all kinds together have at most {MAX_MODELS_BYTES}")
