"""What a job's agents may report: anything at all. No look fails, nothing impossible is stored, no other job pays."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from falcon_core.wire.reporting.messages import RankSignals, Summary
from falcon_core.wire.reporting.reports import decode_summary, encode_summary
from falcon_operator.base.ports import Received
from tests.world.running import operator, run, trained
from tests.world.world import World

BIG = (1 << 63) - 1
EXTREMES = (BIG, BIG // 1000, 1 << 32, 0, -1, -(1 << 63))
replace = msgspec.structs.replace


def places(value: Any, at: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Yield where the numbers of a nested list stand."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*at, index))
    else:
        yield at


def spoilt(value: Any, at: tuple[int, ...], by: int) -> Any:
    """Return the nested list with another number at one place."""
    if not at:
        return by
    changed = list(value)
    changed[at[0]] = spoilt(changed[at[0]], at[1:], by)
    return changed


def impossible(value: Any) -> bool:
    """Check whether an object holds a number that the API server does not take."""
    if isinstance(value, dict):
        return any(map(impossible, value.values()))
    if isinstance(value, list):
        return any(map(impossible, value))
    if isinstance(value, float):
        return value != value or abs(value) == float("inf")
    return isinstance(value, int) and not -(1 << 63) <= value < 1 << 63


def summary_of(world: World, rank: int) -> Summary:
    return world.received[world.pod_of(rank).uid].summary


def receive(world: World, rank: int, summary: Summary) -> None:
    world.received[world.pod_of(rank).uid] = Received(summary=summary, at_seconds=world.clock.monotonic())


@pytest.mark.parametrize("slow", [1.0, 3.0], ids=["healthy", "slow"])
@pytest.mark.parametrize("rank", [0, 2])
async def test_no_number_that_a_report_can_hold_fails_a_look(rank: int, slow: float) -> None:
    world = World()
    await trained(world)
    world.node_of(2).slow = slow
    for _ in range(60):
        world.tick()
    good = summary_of(world, rank)
    stored = world.trainingrun, world.job
    for detailed in ((), (rank,)):
        fields = msgspec.msgpack.decode(encode_summary(good, detailed))
        for at in places(fields):
            for number in EXTREMES:
                try:
                    bad = decode_summary(msgspec.msgpack.encode(spoilt(fields, at, number)), good.pod_uid)
                except ValueError:
                    continue  # refused and counted
                receive(world, rank, bad)
                await operator(world).reconcile("ml", "gpt2")
                assert not impossible(world.trainingrun), (at, number)
                assert not impossible(msgspec.to_builtins(world.status)), (at, number)
                world.trainingrun, world.job = stored
    receive(world, rank, good)


def test_bytes_at_random_and_reports_that_are_cut_are_refused_or_read() -> None:
    random_ = random.Random(11)
    ranks = [RankSignals(rank=number, tracking="Tracking", iterations=99, iteration_ns=[5] * 16) for number in range(4)]
    whole = encode_summary(Summary(pod_uid="p", sequence=1, unix_ns=1, generation=1, ranks=ranks), range(4))
    for length in range(len(whole)):
        with pytest.raises(ValueError, match=r"\w"):
            decode_summary(whole[:length], "p")
    read = 0
    for _ in range(5_000):
        raw = bytearray(whole)
        for _ in range(random_.randint(1, 8)):
            raw[random_.randrange(len(raw))] = random_.randrange(256)
        try:
            decode_summary(bytes(raw), "p")
            read += 1
        except ValueError:
            pass
    assert 0 < read < 5_000


@pytest.mark.parametrize("header", [b"\xdd\x00\x0f\x42\x40", b"\xdd\xff\xff\xff\xff"], ids=["10^6", "2^32"])
def test_a_million_ranks_are_refused_before_they_are_made(header: bytes) -> None:
    head = msgspec.msgpack.encode([2, 1, 1, 1, None, None])
    with pytest.raises(ValueError, match=r"\w"):
        decode_summary(b"\x97" + head[1:] + header + b"\x92\x00\x00" * 80_000, "p")


def test_deep_nesting_is_refused() -> None:
    whole = encode_summary(Summary(pod_uid="p", sequence=1, unix_ns=1, generation=1), ())
    for nested in (b"\x97\x02\x01\x01" + b"\x91" * 60_000, b"\x98" + whole[1:] + b"\x91" * 60_000):
        with pytest.raises(ValueError, match=r"\w"):
            decode_summary(nested, "p")


async def test_a_pod_cannot_speak_for_the_ranks_of_another_pod() -> None:
    world = World()
    await trained(world)
    forged = summary_of(world, 0)
    (own,) = forged.ranks
    slow = replace(own, compute_ns=[value * 9 for value in own.compute_ns], iterations=own.iterations + 5)
    launch = forged.launch
    assert launch is not None
    dead = replace(launch.ranks[0], rank=2, state="Exited", signal=9)
    forged = replace(
        forged,
        launch=replace(launch, ranks=[*launch.ranks, dead]),
        ranks=[own, *(replace(slow, rank=rank) for rank in (1, 2, -1, 10**9))],
    )
    receive(world, 0, forged)
    await operator(world).reconcile("ml", "gpt2")
    assert world.status.diagnoses == []
    assert world.exclusions == []


async def test_iterations_that_go_backwards_and_clocks_that_jump_blame_no_node() -> None:
    world = World()
    await trained(world)
    good = summary_of(world, 0)
    for jump in (-(10**18), 10**18, -1, 7 * 10**18):
        (rank,) = good.ranks
        receive(world, 0, replace(good, unix_ns=good.unix_ns + jump, ranks=[replace(rank, iterations=3)]))
        await operator(world).reconcile("ml", "gpt2")
    assert world.exclusions == []
    await run(world, operator, lambda w: w.status.state == "Running")


async def test_the_status_names_a_pod_whose_report_cannot_be_read() -> None:
    world = World()
    await trained(world)
    pod = world.pod_of(1)
    world.unread = {pod.uid: "Expected `int` <= 4"}
    await run(world, operator, lambda w: any(entry.type == "ReportsReadable" for entry in w.status.conditions))
    (found,) = [entry for entry in world.status.conditions if entry.type == "ReportsReadable"]
    assert (found.status, found.reason) == ("False", "Unreadable")
    assert pod.name in found.message
    assert "ReportsUnreadable" in [reason for reason, _ in world.events]
