"""Which links are found slow, and whose fault it is said to be: pure, from what both ends of each link report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falcon_core.recovery.model.membership import Membership
from falcon_core.recovery.preflight.link_test import (
    LEAST_MACHINES,
    LINK_FACTOR,
    LINKS_SECONDS,
    MOST_EXAMPLES,
    MOST_PAIRS,
    LinksFound,
    SlowMachine,
    judge_links,
    turns,
)
from falcon_core.recovery.preflight.machine_test import (
    Machine,
    Preflight,
    awaited,
    begin_round,
    end_round,
    order_links,
    sick,
)
from falcon_core.wire.measurement.check import CheckReport
from falcon_core.wire.measurement.check_links import MOST_LINKS, NO_PORT, PORT_COMES, LinkReport, LinksReport

GOOD, SLOW = 10_000_000_000, 20_000_000
RTT_US = 80
busy, held = st.integers(0, 1000), st.integers(-1, 1000)
Bits = Callable[[int, int], int]
replace = msgspec.structs.replace


def machine(replica: int, links: LinksReport | None, fp32: int = 1_000_000) -> Machine:
    report = CheckReport(1, backend="torch", devices="1 × H200", micros={"fp32": fp32}, links=links)
    return Machine(replica=replica, pod_name=f"gpt2-{replica}", node=f"node-{replica}", report=report)


def ring(count: int, bits: Bits, rtt_us: Bits = lambda *_: RTT_US, **changes: Any) -> list[Machine]:
    """Return machines that have measured their links: ``bits(own, peer)`` is what the first has received."""
    links: dict[int, list[LinkReport]] = {replica: [] for replica in range(count)}
    for first, second in (pair for pairs in turns(range(count)) for pair in pairs):
        for own, peer in ((first, second), (second, first)):
            links[own].append(replace(LinkReport(peer, bits(own, peer), rtt_us(own, peer)), **changes))
    return [machine(replica, LinksReport(40000, True, links[replica])) for replica in range(count)]


def of_machines(*bad: int, slow: int = SLOW) -> Bits:
    """Return links that are slow at these machines' adapters."""
    return lambda own, peer: slow if own in bad or peer in bad else GOOD


def of_pair(first: int, second: int) -> Bits:
    return lambda own, peer: SLOW if {own, peer} == {first, second} else GOOD


def blamed(machines: list[Machine], computing: tuple[int, ...] = ()) -> list[int]:
    return sorted(each.replica for each in judge_links(machines, computing)[0])


def alone(machines: list[Machine]) -> list[list[str]]:
    return [each.nodes for each in judge_links(machines, ())[1].slow]


@pytest.mark.parametrize("count", [3, 4, 5, 8, 33])
def test_all_alike(count: int) -> None:
    machines, links = judge_links(ring(count, lambda *_: GOOD), ())
    assert (machines, links.slow, links.wanted, links.measured) == ([], [], count, count)


@given(count=st.integers(3, 40), data=st.data())
def test_the_machine_whose_links_are_all_slow_is_blamed_and_nobody_else(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.integers(0, count - 1))
    machines, links = judge_links(ring(count, of_machines(bad)), ())
    assert [each.replica for each in machines] == [bad]
    assert links.slow == [], "its links are its own fault"
    assert machines[0].ratio == GOOD / SLOW
    assert machines[0].text == "20 Mbit/s on the best of its 2 links, 10 Gbit/s on the others"


@given(count=st.integers(3, 40), data=st.data())
def test_a_link_that_is_slow_alone_blames_no_machine(count: int, data: st.DataObject) -> None:
    pair = data.draw(st.sampled_from([pair for pairs in turns(range(count)) for pair in pairs]))
    machines = ring(count, of_pair(*pair))
    assert blamed(machines) == []
    assert alone(machines) == [[f"node-{end}" for end in pair]]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(count=st.integers(3, 6), data=st.data())
def test_one_pod_that_lies_blames_nobody_but_itself(count: int, data: st.DataObject) -> None:
    """All links are well; one pod says anything of its own."""
    liar = data.draw(st.integers(0, count - 1))
    numbers = st.integers(-1, (1 << 63) - 1)
    told = st.builds(LinkReport, st.integers(0, count), numbers, numbers, busy, busy, held, st.sampled_from("x "))
    lies = data.draw(st.lists(told, max_size=MOST_LINKS))
    machines = ring(count, lambda *_: GOOD)
    machines[liar] = machine(liar, LinksReport(40000, True, lies))
    found, links = judge_links(machines, ())
    assert {each.replica for each in found} <= {liar}
    assert all(f"node-{liar}" in each.nodes for each in links.slow)


def test_links_that_a_pod_praises_make_no_other_link_slow() -> None:
    """It says that it was busy as it sent, so that its peers' figures count less, and that it received without end."""
    machines = ring(LEAST_MACHINES, lambda *_: GOOD)
    praises = [LinkReport(peer, 1 << 62, RTT_US, 0, 1000, 1000) for peer in (1, 2)]
    machines[0] = machine(0, LinksReport(40000, True, praises))
    assert judge_links(machines, ())[1].slow == []


@given(
    count=st.integers(LEAST_MACHINES, 12),
    rates=st.lists(st.integers(1, round(LINK_FACTOR)), min_size=24, max_size=24),
)
def test_what_differs_by_less_than_the_factor_is_never_slow(count: int, rates: list[int]) -> None:
    machines, links = judge_links(ring(count, lambda own, peer: 1_000_000 * rates[own + peer]), ())
    assert (machines, links.slow) == ([], [])


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(count=st.integers(3, 5), data=st.data())
def test_any_reports_are_judged_without_an_error_and_within_bounds(count: int, data: st.DataObject) -> None:
    numbers = st.integers(-1, (1 << 63) - 1)
    told = st.builds(LinkReport, st.integers(0, count), numbers, numbers, busy, busy, held, st.text(max_size=9))
    reports = st.one_of(
        st.none(),
        st.builds(LinksReport, st.integers(-1, 65535), st.booleans(), st.lists(told, max_size=MOST_LINKS)),
    )
    machines = [machine(replica, data.draw(reports)) for replica in range(count)]
    found, links = judge_links(machines, data.draw(st.sets(st.integers(0, count))))
    assert len(links.slow) <= MOST_PAIRS
    assert len(links.why_missing) <= MOST_EXAMPLES
    assert 0 <= links.measured <= links.wanted
    assert all(LINK_FACTOR <= each.ratio <= 1e6 for each in found)


@pytest.mark.parametrize(
    ("count", "bad", "expected"),
    [(4, (1, 2), [1, 2]), (6, (0, 3), [0, 3]), (4, (0, 2), []), (3, (0, 1, 2), [])],
    ids=["neighbours", "apart", "every link has a bad end", "all"],
)
def test_several_machines(count: int, bad: tuple[int, ...], expected: list[int]) -> None:
    assert blamed(ring(count, of_machines(*bad))) == expected


def test_one_direction_is_enough() -> None:
    assert blamed(ring(4, lambda own, _: SLOW if own == 2 else GOOD)) == [2]


@pytest.mark.parametrize(
    ("said", "is_link"),
    [
        ({}, True),
        ({"receiving_permille": 600}, False),
        ({"sending_permille": 600}, False),
        ({"held_permille": 950}, True),
        ({"held_permille": 950, "receiving_permille": 600}, True),
        ({"held_permille": 950, "sending_permille": 900}, False),
        ({"held_permille": 600}, False),
    ],
)
def test_a_rate_that_a_cpu_has_held_down_is_not_the_links(said: dict[str, int], is_link: bool) -> None:
    assert blamed(ring(3, of_machines(1), **said)) == [1] * is_link
    assert len(alone(ring(4, of_pair(1, 2), **said))) == is_link


def test_a_slow_direction_counts_though_the_other_keeps_a_cpu_busy() -> None:
    machines = ring(4, lambda own, peer: SLOW if (own, peer) == (2, 1) else GOOD)
    links = machines[1].links
    assert links is not None
    hurried = [replace(each, receiving_permille=900) if each.peer == 2 else each for each in links.links]
    machines[1] = machine(1, replace(links, links=hurried))
    assert alone(machines) == [["node-1", "node-2"]]


def test_the_links_of_a_machine_that_computes_slowly_say_nothing() -> None:
    machines, links = judge_links(ring(4, of_machines(1)), (1,))
    assert (machines, links.slow) == ([], [])


@pytest.mark.parametrize(("rtt_us", "expected"), [(1_500, []), (5_000, [2])], ids=["another zone's", "slow"])
def test_a_machine_that_answers_late(rtt_us: int, expected: list[int]) -> None:
    late: Bits = lambda own, peer: rtt_us if 2 in (own, peer) else RTT_US  # noqa: E731
    machines, _ = judge_links(ring(3, lambda *_: GOOD, late), ())
    assert [each.replica for each in machines] == expected
    if expected:
        text = "5 ms there and back on the best of its 2 links, 0.08 ms there and back on the others"
        assert machines == [SlowMachine(2, "latency", 62.5, text)]


def test_two_machines_are_compared_with_nothing() -> None:
    links = LinksReport(40000, True, [LinkReport(1, SLOW, RTT_US)])
    assert judge_links([machine(0, links), machine(1, links)], ()) == ([], LinksFound())


def test_what_is_not_known_is_said() -> None:
    machines = ring(4, lambda *_: GOOD)
    machines[1] = machine(1, LinksReport(NO_PORT, True, why="the container has no Python"))
    machines[2] = machine(2, LinksReport(40000))
    found, links = judge_links(machines, ())
    assert found == []
    assert links.measured < links.wanted
    assert "gpt2-1: the container has no Python" in links.why_missing
    assert any("no answer in time" in why for why in links.why_missing)


# -- rounds ------------------------------------------------------------------------------------------------------------


def after_rounds(*rounds: list[Machine]) -> tuple[Preflight, int]:
    """Return the state when the check has ended, and how many rounds it took."""
    state, seen = begin_round(Preflight(), 1.0), 0
    while state.asked_at:
        state = end_round(state, rounds[min(seen, len(rounds) - 1)], Membership(generation=1, pods_made=3), 1.0)
        seen += 1
    return state, seen


def test_two_rounds_in_a_row_make_it_certain() -> None:
    good, bad = ring(3, lambda *_: GOOD), ring(3, of_machines(1))
    state, seen = after_rounds(bad, bad)
    assert ([each.node for each in sick(state)], seen) == (["node-1"], 2)
    state, seen = after_rounds(bad, good)
    assert (sick(state), seen) == ([], 2)


def test_a_machine_that_was_slow_in_another_way_is_measured_once_more() -> None:
    bad, others = ring(3, of_machines(1)), ring(3, lambda *_: GOOD)
    others[1] = replace(others[1], report=replace(others[1].report, micros={"fp32": 100_000}))
    state, seen = after_rounds(others, bad, bad)
    assert seen == 3
    (found,) = sick(state)
    assert (found.kind, found.link_rounds) == ("bandwidth", 2)


def test_a_link_alone_is_certain_after_two_rounds_and_makes_nobody_sick() -> None:
    state, seen = after_rounds(ring(4, of_pair(1, 2)))
    assert (seen, sick(state)) == (2, [])
    (pair,) = state.links.slow
    assert (pair.nodes, pair.rounds, pair.is_certain) == (["node-1", "node-2"], 2, True)


@pytest.mark.parametrize(("seconds", "many"), [(1.0, 3), (LINKS_SECONDS + 1, 0), (-LINKS_SECONDS - 1, 0)])
def test_nobody_waits_for_links_for_ever(seconds: float, many: int) -> None:
    state = order_links(begin_round(Preflight(), 900.0), 1000.0, "token")
    machines = [*(machine(each, LinksReport(40000 + each)) for each in range(3)), machine(3, LinksReport(NO_PORT))]
    assert len(awaited(state, machines, 1000.0 + seconds)) == many


def test_a_pod_whose_executor_starts_is_waited_for() -> None:
    state = begin_round(Preflight(), 1000.0)
    machines = [machine(0, LinksReport(40000)), machine(1, LinksReport(PORT_COMES)), machine(2, None)]
    assert [each.replica for each in awaited(state, machines, 1001.0)] == [1]


def test_a_large_job_is_judged_and_its_result_is_bounded() -> None:
    machines = ring(4096, lambda own, peer: SLOW if min(own, peer) % 20 == 0 and abs(own - peer) == 1 else GOOD)
    state, _ = after_rounds(machines)
    assert len(state.links.slow) == MOST_PAIRS
    assert state.links.measured == 4096
    assert len(msgspec.json.encode(state)) < 16384
