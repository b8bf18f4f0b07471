"""A lease's beats without etcd: what its owner learns from each answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import cast

import pytest

from falcon_etcd import EtcdError, Lease, PermissionDenied, Unavailable
from falcon_etcd._proto import rpc_pb2 as pb
from falcon_etcd._transport import Transport

TTL_SECONDS = 0.03  # not a whole number, as etcd's are, to be quick


class Answers:
    """Stands for the transport: gives these answers to the beats, the last one for ever."""

    def __init__(self, *answers: int | Exception) -> None:
        self._answers: Iterator[int | Exception] = iter(answers)
        self._last = answers[-1]
        self.beats = 0
        self.all_given = asyncio.Event()

    async def exchange(self, *_: object, **__: object) -> pb.LeaseKeepAliveResponse:
        self.beats += 1
        answer = next(self._answers, None)
        if answer is None:
            self.all_given.set()
            answer = self._last
        if isinstance(answer, Exception):
            raise answer
        return pb.LeaseKeepAliveResponse(TTL=answer)


def lease_with(answers: Answers) -> Lease:
    return Lease(cast(Transport, answers), 7, cast(int, TTL_SECONDS), time.monotonic())


def unavailable() -> Unavailable:
    return Unavailable("keep lease 7 alive", "etcd:2379", "Socket closed")


async def test_silence_does_not_lose_it() -> None:
    answers = Answers(1, *[unavailable() for _ in range(10)], 1)
    lease = lease_with(answers)
    await asyncio.wait_for(answers.all_given.wait(), 5)
    assert lease.kept
    assert not lease.lost.is_set()
    await lease.stop()
    assert not lease.kept


async def test_it_is_lost_when_etcd_does_not_know_it() -> None:
    lease = lease_with(Answers(1, unavailable(), 0))
    await asyncio.wait_for(lease.lost.wait(), 5)
    assert lease.lost_reason.startswith("etcd does not know the lease")
    assert not lease.kept


async def test_a_refusal_loses_it_once_its_time_has_passed() -> None:
    refusal = PermissionDenied("keep lease 7 alive", "etcd:2379", "etcdserver: permission denied")
    answers = Answers(refusal)
    lease = lease_with(answers)
    await asyncio.wait_for(lease.lost.wait(), 5)
    assert lease.remaining_seconds <= 0
    assert answers.beats > 1
    assert "permission denied" in lease.lost_reason


@pytest.mark.parametrize("fault", [AssertionError("ours"), OSError("ours")])
async def test_a_fault_of_ours_does_not_look_like_life(fault: Exception) -> None:
    assert not isinstance(fault, EtcdError)
    lease = lease_with(Answers(1, fault))
    await asyncio.wait_for(lease.lost.wait(), 5)
    assert "ours" in lease.lost_reason
