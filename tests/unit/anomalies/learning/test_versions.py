"""Versions of limits: from enough runs alone, within their bounds, tried on the kept set, and never in spite of it."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from falcon_anomaly.learning.document import MOST_RUNS, Confirmed, Kind, Run, with_confirmed, with_run
from falcon_anomaly.learning.limits import EARLY, LATE, LEAST, Pair, in_force, limit_for, most
from falcon_anomaly.learning.versions import KEPT_RUNS, LEARNING_RUNS, missing, retrained

ENOUGH = LEARNING_RUNS + KEPT_RUNS
DAY = 20_000


def run(number: int, *, measured: tuple[int, int] = (20, 40), day: int = DAY, **reach: Pair) -> Run:
    return Run(job=job(number), day=day, measured=measured, reach=reach)


def job(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()[:16]


def learned(*runs: Run, before: Kind | None = None) -> Kind:
    kind = before or Kind()
    for each in runs:
        kind = retrained(with_run(kind, each), DAY)
    return kind


def quiet(many: int, first: int = 0) -> list[Run]:
    return [run(first + number, memory=(0, 0), cpu=(30, 30)) for number in range(many)]


def test_nothing_is_learned_before_there_are_enough_runs_of_different_jobs() -> None:
    kind = learned(*quiet(ENOUGH - 1))
    assert (kind.version, kind.limits, missing(kind)) == (0, {}, (1, 1))
    again = learned(*quiet(ENOUGH - 1), before=kind)
    assert again == kind, "the same jobs count once"
    enough = learned(*quiet(ENOUGH))
    assert (enough.version, missing(enough)) == (1, (0, 0))
    assert enough.limits == {"memory": (LEAST, LEAST), "cpu": (60, 60)}


def test_a_run_that_was_measured_too_seldom_does_not_count_for_that_part() -> None:
    kind = learned(*(run(number, measured=(20, 20), memory=(0, 0)) for number in range(ENOUGH)))
    assert kind.limits == {"memory": (LEAST, None)}
    assert missing(kind) == (0, ENOUGH)


def test_a_metric_that_a_run_lacks_and_names_that_are_no_metrics_are_not_learned() -> None:
    runs = [run(number, memory=(0, 0), secret=(0, 0), loss=(0, 0), wait=(0, 0)) for number in range(ENOUGH)]
    runs[1] = run(1, cpu=(0, 0), memory=(0, None))
    assert learned(*runs).limits == {"memory": (LEAST, None)}


@pytest.mark.parametrize("place", [EARLY, LATE])
@pytest.mark.parametrize("name", ["memory", "cpu_throttled", "gpu_temperature"])
def test_no_reach_moves_a_limit_out_of_its_bounds(name: str, place: int) -> None:
    limits = [limit_for(reach, name, place) for reach in range(400)]
    assert limits[0] == LEAST
    assert all(limit is None or LEAST <= limit <= most(name, place) for limit in limits)
    assert limits[-1] is None, "beyond the most, the shipped limit holds"
    assert most(name, LATE) == 100, "never above what is shipped"
    first_hour = 100 if name == "cpu_throttled" else 175
    assert most(name, EARLY) == first_hour


def test_stored_limits_out_of_bounds_hold_nothing() -> None:
    forged: dict[str, Pair] = {"memory": (1, 101), "cpu": (176, 49), "nonsense": (50, 50), "loss": (50, 50)}
    assert {name: tuple(limit) for name, limit in in_force(forged).items()} == {
        "memory": (None, None),
        "cpu": (None, None),
    }
    assert tuple(in_force({"memory": (175, 50)})["memory"]) == (1.75, 0.5)


def test_a_version_that_raises_an_alarm_in_a_kept_run_is_discarded_with_its_reason() -> None:
    kind = learned(*quiet(ENOUGH - 1), run(ENOUGH, memory=(0, 61), cpu=(0, 0)))
    assert (kind.version, kind.limits) == (0, {})
    assert kind.discarded is not None
    assert kind.discarded.version == 1
    assert "memory reached 61 % of its floor, the limit was 50 %" in kind.discarded.why
    # When the run is no longer kept but learned from, the next version knows it.
    later = learned(*quiet(KEPT_RUNS, first=100), before=kind)
    assert (later.version, later.discarded) == (1, None)
    assert later.limits["memory"] == (LEAST, None), "twice 61 % is more than what is shipped"


def test_a_limit_in_force_that_a_healthy_run_goes_beyond_is_given_up_at_once() -> None:
    kind = learned(*quiet(ENOUGH))
    after = learned(run(50, memory=(0, 55), cpu=(0, 0)), before=kind)
    assert after.version == kind.version + 1
    assert after.limits["memory"] == (LEAST, None)
    assert after.limits["cpu"] == (60, 60), "of the other metrics nothing is known that speaks against it"


def test_a_version_that_would_miss_a_confirmed_verdict_is_discarded() -> None:
    kind = learned(*quiet(ENOUGH))
    kind = with_confirmed(kind, Confirmed(job=job(9), metric="cpu", early=False, size=70))
    noisy = [run(200 + number, memory=(0, 0), cpu=(30, 45)) for number in range(LEARNING_RUNS + KEPT_RUNS)]
    after = learned(*noisy, before=kind)
    assert after.limits["cpu"] == (60, 60), "90 % would have missed it"
    assert after.discarded is not None
    assert "confirmed verdicts missed" in after.discarded.why
    without = learned(*noisy, before=msgspec.structs.replace(kind, confirmed=[]))
    assert without.limits["cpu"] == (60, 90)


def test_the_same_finding_is_not_stored_again_on_another_day() -> None:
    kind = learned(*quiet(ENOUGH - 1), run(ENOUGH, memory=(0, 61), cpu=(0, 0)))
    assert retrained(kind, DAY + 1) == kind
    settled = learned(*quiet(ENOUGH))
    assert retrained(settled, DAY + 1) == settled


def test_many_jobs_at_a_time_do_not_push_each_other_out_all_day() -> None:
    kind = learned(*quiet(MOST_RUNS))
    assert learned(*quiet(5, first=500), before=kind) == kind
    tomorrow = with_run(kind, run(600, day=DAY + 1, memory=(0, 0)))
    assert [each.job for each in tomorrow.runs] == [job(number) for number in (*range(1, MOST_RUNS), 600)]


def test_a_run_that_goes_on_never_becomes_smaller() -> None:
    kind = with_run(Kind(), run(1, measured=(20, 0), memory=(40, None)))
    kind = with_run(kind, run(1, measured=(0, 60), day=DAY + 3, memory=(10, 20), cpu=(None, 5)))
    (stored,) = kind.runs
    assert stored == run(1, measured=(20, 60), memory=(40, 20), cpu=(None, 5))
