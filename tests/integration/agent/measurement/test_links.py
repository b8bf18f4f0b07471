"""The executor of the links: real processes and real TCP, over networks with slow links, and beside hostile peers."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from falcon_bench.rendezvous import Door
from falcon_core.recovery.preflight.link_test import judge_links
from falcon_core.recovery.preflight.machine_test import Machine
from tests.integration.agent.linking import TOKEN, Executor, measured, plan, wait_for_ports
from tests.integration.agent.networks import Network, inside, machines, why_not

COUNT = 3
LOOPBACK = "127.0.0.1"


@pytest.fixture
def network() -> Iterator[Network]:
    if why_not():
        pytest.skip(f"skipped: {why_not()}")
    with machines(COUNT) as made:
        yield made


def on(network: Network, folder: Path) -> list[Machine]:
    """Measure the links of a network."""
    executors = [
        Executor(folder, place, network.addresses[place], inside(network.names[place])) for place in range(COUNT)
    ]
    try:
        return measured(executors)
    finally:
        for each in executors:
            each.stop()


@pytest.fixture
def executors(tmp_path: Path) -> Iterator[list[Executor]]:
    made = [Executor(tmp_path, place, LOOPBACK) for place in range(COUNT)]
    yield made
    for each in made:
        each.stop()


def whys(machines: list[Machine]) -> dict[tuple[int, int], str]:
    return {(each.replica, link.peer): link.why for each in machines if each.links for link in each.links.links}


@pytest.mark.alone  # it judges what was measured
def test_links_that_are_alike(network: Network, tmp_path: Path) -> None:
    found, links = judge_links(on(network, tmp_path), ())
    assert (found, links.slow, links.measured, links.why_missing) == ([], [], COUNT, [])


@pytest.mark.alone  # it judges what was measured
def test_a_machine_with_a_slow_adapter_is_blamed(network: Network, tmp_path: Path) -> None:
    network.limit(1, "20mbit")
    found, links = judge_links(on(network, tmp_path), ())
    assert links.measured == COUNT
    assert [(each.replica, each.kind) for each in found] == [(1, "bandwidth")]
    assert links.slow == []


@pytest.mark.alone  # it judges what was measured
def test_one_slow_link_blames_no_machine(network: Network, tmp_path: Path) -> None:
    network.limit_between(0, 1, "20mbit")
    found, links = judge_links(on(network, tmp_path), ())
    assert links.measured == COUNT
    assert found == []
    assert [each.nodes for each in links.slow] == [["n-0", "n-1"]]


def test_a_machine_that_nobody_reaches_is_not_known_and_the_others_are(network: Network, tmp_path: Path) -> None:
    network.refuse(1)
    found, links = judge_links(on(network, tmp_path), ())
    assert (found, links.slow) == ([], [])
    assert (links.wanted, links.measured) == (COUNT, 1)
    assert any("p-1" in why for why in links.why_missing)


def test_a_peer_that_has_died_is_not_known(executors: list[Executor]) -> None:
    wait_for_ports(executors)
    order = plan(executors)
    executors[1].stop()
    for each in executors[::2]:
        each.ask(order)
    for each in executors[::2]:
        each.process.wait(timeout=120)
    found = whys([each.machine() for each in executors[::2]])
    assert found[0, 2] == found[2, 0] == ""
    assert "Connection refused" in found[0, 1]
    assert found[2, 1], "the peer did not come"


def test_strangers_change_nothing(executors: list[Executor]) -> None:
    """More connections than are heard at a time, of which some say nothing, and others say what they like."""
    wait_for_ports(executors)
    said = (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), Door.hello(b"f" * 32, (0, 0, 0)), b"falcon1\n")
    strangers = []
    for each in executors:
        for number in range(40):
            stranger = socket.create_connection((LOOPBACK, each.report().port))
            stranger.settimeout(0.01)
            with contextlib.suppress(OSError):  # it is shown out
                stranger.sendall(said[number % len(said)])
            strangers.append(stranger)
    found = measured(executors)
    for stranger in strangers:
        stranger.close()
    assert set(whys(found).values()) == {""}


class Hostile:
    """A peer that knows the token, in the place of the second of three executors. It is dialled by the first."""

    def __init__(self, executors: list[Executor]) -> None:
        self._listener = socket.create_server((LOOPBACK, 0))
        self.executors = [executors[0], executors[2]]
        wait_for_ports(self.executors)
        order = plan(executors)
        assert order.links is not None
        order.links.ring[1] = (1, LOOPBACK, self._listener.getsockname()[1])
        for each in self.executors:
            each.ask(order)
        self.dialled = self._listener.accept()[0]
        self.port = order.links.ring[2][2]

    def dial(self, kind: int) -> socket.socket:
        """Come to the third executor as its peer does."""
        made = socket.create_connection((LOOPBACK, self.port))
        made.sendall(Door.hello(TOKEN.encode(), (1, 1, kind)))
        return made

    def results(self) -> dict[tuple[int, int], str]:
        for each in self.executors:
            each.process.wait(timeout=120)
        self._listener.close()
        self.dialled.close()
        return whys([each.machine() for each in self.executors])


@pytest.fixture
def hostile(executors: list[Executor]) -> Hostile:
    wait_for_ports(executors)
    executors[1].stop()
    return Hostile(executors)


def test_a_peer_that_says_nothing_ends_with_its_turn(hostile: Hostile) -> None:
    silent = hostile.dial(0)
    found = hostile.results()
    silent.close()
    assert found[0, 2] == found[2, 0] == "", "the others are measured all the same"
    assert found[0, 1]
    assert found[2, 1]


def test_a_peer_that_sends_anything_ends_its_turn(hostile: Hostile) -> None:
    hostile.dialled.sendall(os.urandom(1 << 16))
    noisy = hostile.dial(0)
    noisy.sendall(b"x" * 4001)
    noisy.close()
    found = hostile.results()
    assert found[0, 2] == found[2, 0] == ""
    assert "no executor of this check" in found[0, 1]
    assert found[2, 1]


def test_an_order_with_another_token_lets_nobody_in(executors: list[Executor]) -> None:
    wait_for_ports(executors)
    pair = executors[:2]
    for each, token in zip(pair, ("a" * 32, "b" * 32), strict=True):
        each.ask(plan(pair, token))
    for each in pair:
        each.process.wait(timeout=120)
    assert all(whys([each.machine() for each in pair]).values())
