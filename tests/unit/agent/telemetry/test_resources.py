"""The agent watches what the launcher counts, from training on, within bounds, whatever stands in the file."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_agent.telemetry.resources import MOST_WATCHES, UNTRACKED_SECONDS, Resources
from falcon_core.wire.launcher.launch import CgroupCounters, LaunchCounters, RankCounters, VolumeCounters

GIB = 1 << 30


def counters(number: int, **cgroup: Any) -> LaunchCounters:
    return LaunchCounters(unix_ns=number + 1, cgroup=CgroupCounters(**cgroup))


def leak(resources: Resources, seconds: int, *, trains: bool = True, generation: int = 1, begin: int = 0) -> bool:
    """Let a container of 1 GiB leak 4 MiB a second. Return whether there was news."""
    news = False
    for second in range(begin, begin + seconds):
        used = {"memory_bytes": (100 + 4 * second) << 20, "memory_limit_bytes": GIB}
        news = resources.feed(counters(second, **used), generation, trains=trains, now=float(second)) or news
    return news


def test_a_container_that_leaks_is_news_once() -> None:
    resources = Resources()
    assert leak(resources, 150)
    assert not leak(resources, 60, begin=150)
    (found,) = resources.anomalies(1, {}, 210.0)
    assert (found.kind, found.rank, found.limit) == ("Memory", -1, GIB)
    assert found.left == pytest.approx(231 - 210, abs=6)
    assert found.earliest < found.left < found.latest


def test_page_cache_that_fills_the_container_is_no_leak() -> None:
    resources = Resources()
    for second in range(250):
        cached = (4 * second) << 20
        read = counters(second, memory_bytes=cached + GIB // 4, memory_cache_bytes=cached, memory_limit_bytes=GIB)
        assert not resources.feed(read, 1, trains=True, now=float(second))


def test_what_a_program_takes_while_it_loads_is_no_growth() -> None:
    resources = Resources()
    assert not leak(resources, 200, trains=False)
    assert resources.anomalies(1, {}, 200.0) == []


def test_a_program_whose_calls_are_not_seen_is_watched_after_a_while() -> None:
    resources = Resources()
    assert not leak(resources, int(UNTRACKED_SECONDS), trains=False)
    assert resources.anomalies(1, {}, UNTRACKED_SECONDS) == []
    leak(resources, 1, trains=False, begin=int(UNTRACKED_SECONDS))
    resources.feed(counters(9999), 1, trains=False, now=700.0)
    assert leak(Resources(), 150)


def test_a_generation_begins_with_no_history() -> None:
    resources = Resources()
    leak(resources, 150)
    leak(resources, 20, generation=2, begin=150)
    assert resources.anomalies(1, {}, 170.0) == []
    assert resources.anomalies(2, {}, 170.0) == []


def test_open_files_are_of_the_rank_and_volumes_of_the_pod() -> None:
    resources = Resources()
    for second in range(150):
        read = LaunchCounters(
            unix_ns=second + 1,
            cgroup=CgroupCounters(pids=10, pids_limit=100),
            ranks=[RankCounters(local_rank=1, open_files=50 + 4 * second, open_files_limit=1024)],
            volumes=[
                VolumeCounters(path="/data", bytes=5, limit_bytes=GIB, files=100 + 5 * second, limit_files=1000),
                VolumeCounters(path="/nothing", bytes=5, limit_bytes=0, files=0, limit_files=0),
            ],
        )
        resources.feed(read, 1, trains=True, now=float(second))
    found = resources.anomalies(1, {0: 4, 1: 5}, 150.0)
    assert [(each.kind, each.rank, each.metric) for each in found] == [("Inodes", -1, "/data"), ("OpenFiles", 5, "")]


def test_numbers_and_names_that_make_no_sense_are_bounded() -> None:
    resources = Resources()
    for second in range(300):
        read = LaunchCounters(
            unix_ns=second + 1,
            cgroup=CgroupCounters(
                memory_bytes=-5, memory_cache_bytes=1 << 62, memory_limit_bytes=1 << 62, pids=1 << 63
            ),
            ranks=[RankCounters(local_rank=n, open_files=-1, open_files_limit=-1) for n in range(500)],
            volumes=[
                VolumeCounters(path=f"/{second}\x1b[1m" + "x" * 500, bytes=-1, limit_bytes=-1, files=-1, limit_files=-1)
                for _ in range(50)
            ],
        )
        resources.feed(read, 1, trains=True, now=float(second))
    assert resources.anomalies(1, {}, 300.0) == []
    assert len(resources._watches) <= MOST_WATCHES
