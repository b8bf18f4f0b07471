"""Which machines are found bad: by their peers' rates, and by wrong results."""

from __future__ import annotations

import statistics
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.recovery.model.membership import Membership
from falcon_core.recovery.preflight.machine_test import (
    ANSWER_SECONDS,
    MOST_EXAMPLES,
    MOST_NAMED,
    MOST_ROUNDS,
    SLOW_FACTOR,
    Machine,
    Preflight,
    awaited,
    begin_round,
    end_round,
    is_due,
    judge,
    sick,
)
from falcon_core.wire.measurement.check import CheckReport, read_printed

MEMBERSHIP = Membership(generation=1, pods_made=3)
replace = msgspec.structs.replace


def machine(replica: int, fp32: float = 1.0, **report: Any) -> Machine:
    fields = {"backend": "torch", "devices": "8 × H200", "micros": {"fp32": round(fp32 * 1e6)}, **report}
    return Machine(
        replica=replica,
        pod_name=f"gpt2-{replica}",
        node=f"node-{replica}",
        report=CheckReport(1, **fields),
    )


def silent(replica: int) -> Machine:
    return Machine(replica=replica, pod_name=f"gpt2-{replica}", node=f"node-{replica}")


@pytest.mark.parametrize(
    ("rates", "bad"),
    [
        ([1.0, 1.0, 1.0], []),
        ([1.0, 0.7, 1.0], []),
        ([1.0, 0.6, 1.0], [1]),
        ([1.0, 0.6], [1]),
        ([0.5], []),
        ([1.0, 0.5, 0.5, 0.5], []),
        ([1.0, 1.0, 0.5, 0.4, 1.0], [2, 3]),
        ([1.0, 0.0, 1.0], [1]),
    ],
    ids=[
        "alike",
        "within what training shows",
        "slow",
        "of two the slower",
        "alone",
        "most are as slow",
        "two of five",
        "nothing at all",
    ],
)
def test_against_the_median_of_the_others(rates: list[float], bad: list[int]) -> None:
    found = judge([machine(replica, rate) for replica, rate in enumerate(rates)])
    assert sorted(each.replica for each in found) == bad


def test_only_equal_machines_are_compared() -> None:
    assert judge([machine(0), machine(1, 0.3, devices="8 × L40S")]) == []
    assert judge([machine(0), machine(1, 0.3, backend="numpy")]) == []
    assert judge([machine(0), machine(1, 0.3, why="no python3"), silent(2)]) == []


@pytest.mark.parametrize(
    ("fp32", "copy", "named"),
    [(0.8, 0.1, ("copy", 10.0)), (0.5, 0.1, ("fp32", 2.0)), (0.5, 1.0, ("fp32", 2.0))],
    ids=["copies alone", "products before copies", "products alone"],
)
def test_which_kind_is_named(fp32: float, copy: float, named: tuple[str, float]) -> None:
    micros = {"fp32": round(fp32 * 1e6), "copy": round(copy * 1e6), "fp8": 7}
    (found,) = judge([machine(0, micros={"fp32": 1_000_000, "copy": 1_000_000}), machine(1, micros=micros), machine(2)])
    assert (found.kind, found.ratio) == named


@given(rounds=st.lists(st.sampled_from(["", "copy", "fp32"]), min_size=MOST_ROUNDS, max_size=MOST_ROUNDS))
def test_copies_need_a_round_more_than_products(rounds: list[str]) -> None:
    """Two rounds in a row with slow products, or three in which anything was slow; otherwise it is a good machine."""
    state, seen = begin_round(Preflight(), 1.0), 0
    good = {"fp32": 1_000_000, "copy": 1_000_000}
    while state.asked_at:
        slow = {**good, rounds[seen]: 300_000} if rounds[seen] else good
        state = end_round(state, [machine(0, micros=good), machine(1, micros=slow), machine(2)], MEMBERSHIP, 1.0)
        seen += 1
    told = rounds[:seen]
    assert bool(sick(state)) == (told[-2:] == ["fp32"] * 2 or (len(told) >= 3 and "" not in told[-3:]))
    assert "" not in told[:-1], "a round that finds nothing ends the check"


def test_wrong_results_are_named_first_and_need_no_peer() -> None:
    state = begin_round(Preflight(), 1.0)
    machines = [machine(0, problems=["device 1 (H200): wrong"], devices="other"), machine(1), machine(2, 0.2)]
    state = end_round(state, machines, MEMBERSHIP, 2.0)
    assert state.asked_at, "the slow one is measured again"
    state = end_round(state, machines, MEMBERSHIP, 3.0)
    assert [(each.replica, each.text) for each in sick(state)] == [(0, "device 1 (H200): wrong"), (2, "")]


def test_rounds_without_end_end() -> None:
    state = begin_round(Preflight(), 1.0)
    rounds = 1
    while state.asked_at:
        # Another machine is slow each time: chance, or a cluster that somebody else uses.
        state = end_round(
            state, [machine(each, 0.1 if each == rounds % 3 else 1.0) for each in range(3)], MEMBERSHIP, 1.0
        )
        rounds += 1
    assert rounds == MOST_ROUNDS + 1
    assert sick(state) == []
    assert not is_due(state, Membership(generation=2, pods_made=9), suspected=True)


@pytest.mark.parametrize(
    ("pods_made", "generation", "suspected", "due"),
    [(3, 5, False, False), (4, 5, False, True), (3, 5, True, True), (3, 4, True, False)],
    ids=["the same pods", "a newcomer", "a failure points at a machine", "checked since it failed"],
)
def test_when_machines_are_measured(pods_made: int, generation: int, suspected: bool, due: bool) -> None:
    measured = Membership(generation=4, pods_made=3)
    state = replace(end_round(begin_round(Preflight(), 1.0), [machine(0), machine(1)], measured, 2.0), rounds=0)
    assert is_due(state, Membership(generation=generation, pods_made=pods_made), suspected=suspected) is due


def test_a_large_job_is_judged_alike_and_its_result_is_bounded() -> None:
    rates = [1.0 + number / 1e6 for number in range(4096)]
    machines = [machine(each, rate * (0.5 if each % 40 == 0 else 1.0)) for each, rate in enumerate(rates)]
    found = judge(machines)
    assert sorted(each.replica for each in found) == list(range(0, 4096, 40))
    assert found[0].ratio == 2.0
    state = end_round(begin_round(Preflight(), 1.0), [*machines, *map(silent, range(99))], MEMBERSHIP, 2.0)
    assert (len(state.found), state.missing, len(state.why_missing)) == (MOST_NAMED, 99, MOST_EXAMPLES)
    assert len(msgspec.json.encode(state)) < 8192


@given(rates=st.lists(st.integers(1, 50), min_size=2, max_size=9))
def test_the_median_of_the_others_is_theirs(rates: list[int]) -> None:
    found = {each.replica: each.ratio for each in judge([machine(each, rate) for each, rate in enumerate(rates)])}
    for place, own in enumerate(rates):
        ratio = statistics.median(rates[:place] + rates[place + 1 :]) / own
        assert found.get(place, 0.0) == (pytest.approx(ratio, abs=0.01) if ratio > SLOW_FACTOR else 0.0)


@pytest.mark.parametrize(("seconds", "many"), [(1.0, 1), (ANSWER_SECONDS + 1, 0), (-ANSWER_SECONDS - 1, 0)])
def test_nobody_is_waited_for_for_ever(seconds: float, many: int) -> None:
    state = begin_round(Preflight(), 1000.0)
    assert len(awaited(state, [machine(0), silent(1)], 1000.0 + seconds)) == many


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "printed no result"),
        (b"[" * 5000, "printed no result"),
        (b'{"scores": {"fp32": "fast"}}', "printed no result"),
        (b'{"scores": {}}', "measured nothing"),
        (b'a warning\n{"scores": {"fp32": 0.5}, "backend": "torch", "devices": [{"name": "H200"}]}\n', ""),
    ],
)
def test_what_the_executor_printed(text: bytes, why: str) -> None:
    report = read_printed(3, text)
    assert report.number == 3
    assert why in report.why
    if not why:
        assert (report.why, report.devices, report.micros) == ("", "1 × H200", {"fp32": 500_000})


def test_a_hostile_result_is_cut() -> None:
    many = ",".join(f'"{"k" * 400}{number}": 1e300' for number in range(100))
    report = read_printed(1, f'{{"scores": {{{many}}}, "problems": {["x" * 999] * 99}}}'.replace("'", '"').encode())
    assert report.micros == {}
    assert len(report.problems) == 8
    assert {len(problem) for problem in report.problems} == {256}
