"""What is stored: damaged, foreign, hostile and newer texts, the room of a ConfigMap, and whose kinds go first."""

from __future__ import annotations

import copy
import functools
import json
import random
from collections.abc import Iterable

import msgspec
import pytest

from falcon_anomaly.learning import document
from falcon_anomaly.learning.document import DamagedError, Kind, NewerFormatError, Run
from falcon_anomaly.learning.library import ROOM_BYTES, Library
from falcon_anomaly.learning.limits import learnable, scale
from falcon_anomaly.learning.probation import WAITS_SECONDS, Confirmation, Probation
from falcon_anomaly.series.metrics import known_metrics
from falcon_core.job_kind import kind_of
from falcon_core.wire.lessons import MAX_MODELS_BYTES, Models, models_bytes

DAY = 20_000


@functools.cache
def healthy(reach: float = 0.0, measured: int = 60) -> Probation:
    """Return what a run has shown that was measured so often in each part of its training."""
    shown = Probation()
    for early in (True, False):
        for number in range(measured):
            shown.measure(float(number), early, dict.fromkeys(known_metrics(), reach))
            shown.report(float(number) + WAITS_SECONDS, quiet=True)
    return shown


def kind(number: int, namespace: str = "team") -> str:
    return kind_of(namespace, {"replicas": number})


def learned(*names: str, runs: int = 5, day: int = DAY) -> Library:
    library = Library()
    for name in names:
        for number in range(runs):
            library.learn(name, f"{name}-{number}", healthy(), day)
    return library


def stored(library: Library) -> Models:
    found = library.changed()
    assert found is not None
    return found


def test_what_is_stored_is_read_again_and_says_no_name() -> None:
    name = kind(1, "secret-team")
    models = stored(learned(name))
    assert "secret" not in json.dumps(models)
    again = Library()
    again.take(models)
    assert again.changed() is None
    assert (again.version(name), again.limits(name)["memory"].late) == (1, 0.5)
    assert again.limits(kind(2)) == {}, "of another kind nothing is known"
    assert again.limits(kind(1, "other-team")) == {}, "nor of the same job in another namespace"


def test_a_job_that_trains_on_does_not_have_it_written_at_each_lesson() -> None:
    library, shown = Library(), copy.deepcopy(healthy(measured=40))
    library.learn(kind(1), "a", shown, DAY)
    library.take(stored(library))
    shown.measured[1] += 19
    library.learn(kind(1), "a", shown, DAY)
    assert library.changed() is None
    shown.measured[1] += 1
    library.learn(kind(1), "a", shown, DAY)
    assert library.changed() is not None


def test_a_lesson_that_was_not_stored_is_stored_by_the_next() -> None:
    library = Library()
    library.take({})
    library.learn(kind(1), "a", healthy(), DAY)
    first = library.changed()
    library.take({})
    assert library.changed() == first


A_RUN = '{"job":"aaaaaaaaaaaaaaaa","day":1,"measured":[1,1],"reach":{}}'
DAMAGED = {
    "no JSON": "{",
    "no object": "[1]",
    "empty": "",
    "too large": '{"format":1,"scale":"' + "x" * document.MOST_BYTES + '"}',
    "a limit as text": '{"format":1,"limits":{"memory":["50",50]}}',
    "a negative reach": '{"format":1,"runs":[' + A_RUN.replace("{}", '{"cpu":[-1,1]}') + "]}",
    "a run of no job": '{"format":1,"runs":[' + A_RUN.replace("aa", "/.") + "]}",
    "many runs": '{"format":1,"runs":[' + ",".join((document.MOST_RUNS + 1) * [A_RUN]) + "]}",
    "deep": '{"format":1,"limits":' + 500 * "[" + 500 * "]" + "}",
    "an earlier format": '{"format":0}',
    "no format": "{}",
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_kind_begins_again_and_costs_no_other_kind(text: str) -> None:
    good = stored(learned(kind(1)))
    library = Library()
    library.take({**good, kind(2): text})
    assert (library.damaged, library.version(kind(1)), library.limits(kind(2))) == (1, 1, {})
    assert library.changed() == good
    library.learn(kind(2), "a", healthy(), DAY)
    assert json.loads(stored(library)[kind(2)])["runs"]


def test_any_text_is_read_or_refused() -> None:
    text = stored(learned(kind(1)))[kind(1)]
    numbers = random.Random(7)
    for _ in range(2000):
        at, end = sorted(numbers.randrange(len(text)) for _ in range(2))
        try:
            found = document.decode(text[:at] + numbers.choice(["", "9", "null", '"', "-1", "{}"]) + text[end:])
        except (DamagedError, NewerFormatError):
            continue
        assert len(document.encode(found).encode()) <= 2 * document.MOST_BYTES


def test_a_later_releases_text_is_left_alone_and_not_used() -> None:
    name, text = kind(1), '{"format":2,"anything":[1]}'
    library = Library()
    library.take({name: text})
    library.learn(name, "a", healthy(), DAY)
    library.used(name, DAY)
    assert (library.changed(), library.limits(name), library.damaged) == (None, {}, 0)
    library.learn(kind(2), "a", healthy(), DAY)
    assert stored(library)[name] == text


def test_what_was_measured_by_other_floors_is_not_used() -> None:
    name = kind(1)
    before = document.decode(stored(learned(name))[name])
    assert before.scale == scale()
    library = Library()
    library.take({name: document.encode(msgspec.structs.replace(before, scale="0"))})
    assert (library.limits(name), library.changed()) == ({}, None), "an earlier release may come back"
    library.learn(name, "a", healthy(), DAY)
    assert len(document.decode(stored(library)[name]).runs) == 1


def troubled(metrics: Iterable[str]) -> Probation:
    """Return what a run has shown in which the shipped limits confirmed verdicts on these metrics."""
    shown = Probation()
    shown.confirmed = {Confirmation(metric, early, 70) for metric in metrics for early in (True, False)}
    return shown


def test_jobs_with_more_confirmed_verdicts_than_are_kept_do_not_have_it_written_at_each_lesson() -> None:
    name, metrics = kind(1), sorted(name for name in known_metrics() if learnable(name))
    jobs = {f"job-{number}": troubled(metrics[3 * number : 3 * number + 3]) for number in range(4)}
    assert sum(len(shown.confirmed) for shown in jobs.values()) > document.MOST_CONFIRMED
    library, writes = Library(), 0
    for _ in range(60):
        for uid, shown in jobs.items():
            library.learn(name, uid, shown, DAY)
        if (models := library.changed()) is not None:
            writes += 1
            library.take(models)
    # Within a lesson they push each other out, but each lesson ends with the same ones.
    assert writes == 1


def test_a_tenant_of_many_kinds_pushes_out_its_own() -> None:
    others = [kind(number, "small-team") for number in range(5)]
    library = learned(*others, day=DAY - 30)
    many = [kind(number, "large-team") for number in range(200)]
    for number, name in enumerate(many):
        for run in range(5):
            library.learn(name, f"{name}-{run}", healthy(0.31), DAY + number // 50)
            library.used(name, DAY + number // 50)
    models = stored(library)
    assert models_bytes(models) <= ROOM_BYTES < MAX_MODELS_BYTES
    assert set(others) <= models.keys(), "though they were not used for longest"
    kept = [name for name in many if name in models]
    assert 40 <= len(kept) < len(many)
    assert set(many[-40:]) <= set(kept), "the newest stay"


def test_a_full_kind_fits_its_bounds() -> None:
    runs = [
        Run(
            job=f"{number:016x}", day=DAY, measured=(960, 960), reach=dict.fromkeys(known_metrics(), (100_000, 100_000))
        )
        for number in range(document.MOST_RUNS)
    ]
    full = Kind(scale=scale(), version=1 << 31, runs=runs, limits=dict.fromkeys(known_metrics(), (175, 100)))
    assert document.decode(document.encode(full)) == full
