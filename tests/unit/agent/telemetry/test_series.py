"""Windows of ten seconds and a chunk a minute, from whatever a pod does; and which names and counters go into them."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from falcon_agent.telemetry.network import Traffic, read_traffic
from falcon_agent.telemetry.readings import MOST_VOLUMES, CounterReadings
from falcon_agent.telemetry.series import MOST_METRICS, WARM_UP_SECONDS, SeriesWindows, phase_of
from falcon_agent.telemetry.series_feed import SeriesFeed
from falcon_core.wire.launcher.launch import CgroupCounters, LaunchCounters, LaunchStatus, RankCounters, VolumeCounters
from falcon_core.wire.network import NetworkCounters
from falcon_core.wire.series import CONTAINER, MAX_NAME, WINDOW_SECONDS, WINDOWS, Chunk, Phase, decode_chunk

BEGAN = 1_000.0  # monotonic
UNIX = 1_700_000_003.0  # three seconds into a window
SHIFT = UNIX - BEGAN


def values(chunk: Chunk, rank: int, metric: str) -> list[list[float]]:
    """Return median, minimum and maximum of each window."""
    found = chunk.values[chunk.ranks.index(rank), chunk.metrics.index(metric)]
    return [[float(each) for each in window] for window in found]


def run(windows: SeriesWindows, seconds: int, *, begin: int = 0, phase: Phase = Phase.TRAINING) -> list[Chunk]:
    """Read the number of the second, each second, and return the chunks that were due."""
    chunks = []
    for second in range(begin, begin + seconds):
        now = BEGAN + second
        windows.begin(1, now, now + SHIFT)
        windows.add(0, "iteration", float(second))
        chunk = windows.look(phase, now, now + SHIFT)
        if chunk is not None:
            chunks.append(decode_chunk(chunk))
    return chunks


def test_a_chunk_a_minute_holds_all_windows_once() -> None:
    windows = SeriesWindows("pod-a")
    chunks = run(windows, 400)
    assert 5 <= len(chunks) <= 7
    assert [chunk.number for chunk in chunks] == list(range(1, len(chunks) + 1))
    assert {len(chunk.phases) for chunk in chunks[1:]} == {WINDOWS}
    medians = [window[0] for chunk in chunks for window in values(chunk, 0, "iteration")]
    assert np.diff(medians[1:]).tolist() == pytest.approx([WINDOW_SECONDS] * (len(medians) - 2), abs=0.02)


def test_a_window_has_the_median_and_the_extremes_of_its_readings() -> None:
    windows = SeriesWindows("pod-a")
    chunk = run(windows, 200)[1]
    for median, low, high in values(chunk, 0, "iteration"):
        assert (median - low, high - median) == pytest.approx((4.5, 4.5), abs=0.05)


def test_windows_end_at_whole_tens_of_the_nodes_clock_and_the_age_says_when() -> None:
    windows = SeriesWindows("pod-a")
    sent = []
    for second in range(200):
        now = BEGAN + second
        windows.begin(1, now, now + SHIFT)
        chunk = windows.look(Phase.TRAINING, now, now + SHIFT)
        if chunk is not None:
            sent.append(now + SHIFT - decode_chunk(chunk).age_ms / 1000)
    assert sent
    assert all(ended % WINDOW_SECONDS == 0 for ended in sent)


def test_pods_send_at_moments_of_their_own() -> None:
    moments = set()
    for number in range(100):
        windows = SeriesWindows(f"pod-{number}")
        for second in range(130):
            now = BEGAN + second
            windows.begin(1, now, now + SHIFT)
            if windows.look(Phase.TRAINING, now, now + SHIFT) is not None:
                moments.add(second % 60)
    assert len(moments) > 30


def test_a_window_that_touches_another_phase_is_of_that_phase() -> None:
    windows = SeriesWindows("pod-a")
    run(windows, 25)
    run(windows, 1, begin=25, phase=Phase.CHECKPOINT)
    phases = [phase for chunk in run(windows, 200, begin=26) for phase in chunk.phases]
    assert phases.count(Phase.CHECKPOINT) == 1


def test_the_windows_of_a_generation_that_is_over_are_sent_at_once() -> None:
    windows = SeriesWindows("pod-a")
    kept = sum(len(chunk.phases) for chunk in run(windows, 95))
    left = windows.begin(2, BEGAN + 95, UNIX + 95)
    assert left is not None
    chunk = decode_chunk(left)
    assert chunk.generation == 1
    assert kept + len(chunk.phases) == 9  # 97 seconds of the clock's windows, of which nine had ended
    assert windows.begin(2, BEGAN + 96, UNIX + 96) is None


def test_while_the_agent_stands_still_there_are_no_windows() -> None:
    windows = SeriesWindows("pod-a")
    run(windows, 35)
    now = BEGAN + 300
    left = windows.look(Phase.TRAINING, now, now + SHIFT)
    assert left is not None
    chunk = decode_chunk(left)
    assert chunk.age_ms == pytest.approx(1000 * (300 - 27), abs=1)  # the last window ended 27 seconds after the start
    assert all(len(each.phases) <= WINDOWS for each in run(windows, 200, begin=301))


def test_nothing_is_kept_while_no_service_reads() -> None:
    windows = SeriesWindows("pod-a")
    run(windows, 40)
    windows.stop()
    assert not windows.keeps
    assert windows.look(Phase.TRAINING, BEGAN + 50, UNIX + 50) is None
    chunk = run(windows, 200, begin=100)[0]
    assert all(window[1] >= 100 for window in values(chunk, 0, "iteration"))


def test_readings_that_are_no_numbers_show_in_the_maximum() -> None:
    windows = SeriesWindows("pod-a")
    windows.begin(1, BEGAN, UNIX)
    for reading in (2.0, math.nan, 3.0):
        windows.add(0, "loss", reading)
    windows.add(1, "loss", math.inf)
    chunk = run(windows, 100)[0]
    low, high = values(chunk, 0, "loss")[0][1:]
    assert low == 2.0
    assert math.isnan(high)
    assert all(math.isnan(each) for each in values(chunk, 1, "loss")[0])
    assert chunk.known[chunk.ranks.index(1), chunk.metrics.index("loss")].tolist() == [True] + [False] * (
        len(chunk.phases) - 1
    )


def test_names_and_series_are_bounded() -> None:
    windows = SeriesWindows("pod-a")
    windows.begin(1, BEGAN, UNIX)
    for number in range(1000):
        windows.add(0, f"disk:{number}", 1.0)
        windows.count(0, f"error_lines:{number}", 1)
    chunk = run(windows, 100)[0]
    assert len(chunk.metrics) == MOST_METRICS


def status(state: str) -> LaunchStatus:
    return LaunchStatus(generation=1, dead_below=1, state=state)  # type: ignore[arg-type]


def test_phases_follow_the_launcher_and_the_first_iterations() -> None:
    def phase(state: str | None, trains_since: float | None = None, now: float = 100.0) -> Phase:
        return phase_of(None if state is None else status(state), trains_since=trains_since, began=0.0, now=now)

    assert phase(None) == phase("Idle") == phase("Running") == Phase.START
    assert phase("Running", now=700.0) == Phase.TRAINING  # a program whose calls are not seen
    assert phase("Running", 90.0) == Phase.WARM_UP
    assert phase("Running", 90.0, 90.0 + WARM_UP_SECONDS) == Phase.TRAINING
    assert phase("Stopping", 90.0) == phase("Stopped") == Phase.REPAIR
    assert phase("Exited", 90.0) == Phase.ENDED


def counters(second: float, **fields: Any) -> LaunchCounters:
    unix_ns = round((UNIX + second) * 1e9)
    return LaunchCounters(unix_ns=unix_ns, cgroup=fields.pop("cgroup", CgroupCounters()), **fields)


def test_counters_become_rates_and_levels_under_the_services_names() -> None:
    feed = CounterReadings()
    before, after = (
        counters(
            2.0 * turn,
            cgroup=CgroupCounters(
                cpu_usage_ns=turn * 3_000_000_000,
                throttled_ns=turn * 200_000_000,
                cpu_pressure_some_us=turn * 500_000,
                memory_bytes=900,
                memory_cache_bytes=300,
                memory_limit_bytes=1000,
                pids=12,
            ),
            network=NetworkCounters(again=turn * 10, congested=turn * 2, faulty=turn * 4),
            volumes=[VolumeCounters(path="/data", bytes=25, limit_bytes=100, files=1, limit_files=0)],
            ranks=[
                RankCounters(
                    local_rank=0,
                    cpu_ns=turn * 2_000_000_000,
                    run_delay_ns=turn * 100_000_000,
                    collected_ns=turn * 20_000_000,
                    open_files=7,
                )
            ],
        )
        for turn in (0, 1)
    )
    levels = {
        (CONTAINER, "memory"): 600,
        (CONTAINER, "memory_limit"): 1000,
        (CONTAINER, "threads"): 12,
        (CONTAINER, "disk:/data"): 0.25,
        (0, "open_files"): 7,
    }
    assert {(each[0], each[1]): each[2] for each in feed.feed(before, Traffic(0, 0))} == levels
    assert feed.feed(before, Traffic(0, 0)) == []
    assert {(each[0], each[1]): each[2] for each in feed.feed(after, Traffic(4000, 2000))} == pytest.approx(
        {
            **levels,
            (CONTAINER, "cpu"): 1.5,
            (CONTAINER, "cpu_throttled"): 0.1,
            (CONTAINER, "cpu_pressure"): 0.25,
            (CONTAINER, "retransmits"): 5,
            (CONTAINER, "nic_errors"): 2,
            (CONTAINER, "nic_congestion"): 1,
            (CONTAINER, "network_in"): 2000,
            (CONTAINER, "network_out"): 1000,
            (0, "cpu"): 1.0,
            (0, "run_delay"): 0.05,
            (0, "collecting"): 0.01,
        }
    )


def test_counters_that_fall_or_are_unknown_give_no_rate() -> None:
    feed = CounterReadings()
    feed.feed(counters(0, cgroup=CgroupCounters(cpu_usage_ns=10), network=NetworkCounters(again=5)), Traffic(9, 9))
    assert feed.feed(counters(1, cgroup=CgroupCounters(cpu_usage_ns=5)), None) == []
    assert feed.feed(None, None) == []


def test_volumes_of_a_forged_file_are_bounded_and_cleaned() -> None:
    many = [
        VolumeCounters(
            path=f"\x1b[2J/{number}" + "x" * 200, bytes=-1 if number else 200, limit_bytes=100, files=0, limit_files=0
        )
        for number in range(100)
    ]
    found = CounterReadings().feed(counters(0, volumes=many), None)
    assert len(found) <= MOST_VOLUMES
    (only,) = found
    assert only.value == 1.0
    assert len(only.metric) <= MAX_NAME
    assert only.metric.isprintable()


def test_bytes_of_all_interfaces_but_the_loopback_are_read(tmp_path: Path) -> None:
    devices = tmp_path / "dev"
    devices.write_text(
        "Inter-| Receive | Transmit\n face |bytes packets\n"
        "    lo: 900 1 0 0 0 0 0 0 900 1 0 0 0 0 0 0\n"
        "  eth0: 100 1 0 0 0 0 0 0 40 1 0 0 0 0 0 0\n"
        "  ib0:5 1 0 0 0 0 0 0 2 1 0 0 0 0 0 0\n"
    )
    assert read_traffic(devices) == Traffic(105, 42)
    devices.write_text("a\nb\n  eth0: 1 2\n")
    assert read_traffic(devices) is None
    assert read_traffic(tmp_path / "none") is None


def test_what_a_pod_prints_and_does_is_named_by_its_ranks() -> None:
    feed = SeriesFeed("pod-a")
    chunks = []
    for second in range(130):
        now = BEGAN + second
        feed.begin(1, {0: 8, 1: 9}, now, now + SHIFT)
        feed.take_counters(counters(second, ranks=[RankCounters(local_rank=1, open_files=3)]), None)
        feed.take_iterations({8: {"iteration": [0.5, 0.7], "computation": [], "wait": []}})
        feed.take_output(
            {
                0: (Counter({"CudaOutOfMemory": 1, "": 2}), {"loss": [2.5], "gradNorm": [0.5], "tokens": [7.0]}),
                1: (Counter(), {}),
                5: (Counter({"": 1}), {}),  # no rank of this generation
            }
        )
        chunks += feed.end(Phase.TRAINING, now, now + SHIFT)
    chunk = decode_chunk(chunks[-1])
    assert chunk.ranks == (8, 9)
    present = {
        rank: {name for column, name in enumerate(chunk.metrics) if chunk.known[row, column].any()}
        for row, rank in enumerate(chunk.ranks)
    }
    assert present[8] == {
        "iteration",
        "error_lines",
        "error_lines:CudaOutOfMemory",
        "loss",
        "grad_norm",
        "output:tokens",
    }
    assert present[9] == {"open_files", "error_lines"}
    whole = len(chunk.phases) - 1
    assert values(chunk, 8, "error_lines")[whole] == [30, 30, 30]
    assert values(chunk, 9, "error_lines")[whole] == [0, 0, 0]
