"""Waits that depend on what another process does are longer than that takes; the launcher's times are read from C++."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from falcon_agent.agent import READ_SECONDS
from falcon_bench import links
from falcon_core import times
from falcon_core.signals.rank.hang_deadline import MINIMUM_DEADLINE_NS
from falcon_operator.base.ports import LEASE_SECONDS
from falcon_operator.runtime.election import RENEW_DEADLINE_SECONDS, RETRY_SECONDS

ROOT = Path(__file__).resolve().parents[3]
LAUNCHER = ROOT / "shim" / "src" / "launch"
REQUESTS = ROOT / "agent" / "falcon_torch" / "requests.py"


def launcher_seconds(name: str) -> float:
    """Return a constant of the launcher in seconds; the launcher counts in nanoseconds."""
    sources = [path.read_text() for path in sorted(LAUNCHER.rglob("*.*"))]
    found = [value for text in sources for value in re.findall(rf"constexpr int64_t {name} = ([^;]+);", text)]
    assert len(found) == 1, f"{name}: {found}"
    product = 1.0
    for factor in found[0].replace("'", "").split("*"):
        product *= 1e9 if factor.strip() == "kSecondNs" else float(factor)
    return product / 1e9


def torch_seconds(name: str) -> float:
    """Return a constant of ``falcon_torch.requests``, which only runs beside PyTorch."""
    (found,) = re.findall(rf"^{name} = ([0-9.]+)", REQUESTS.read_text(), re.MULTILINE)
    return float(found)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # reports and liveness
        (times.DETAIL_SECONDS, times.REPORT_SECONDS),
        (times.REPORT_SECONDS + times.URGENT_SECONDS, times.FRESH_SECONDS),
        (2 * times.REPORT_SECONDS, times.BLIND_SECONDS),
        (times.FRESH_SECONDS, times.BLIND_SECONDS),
        (2 * times.HEARTBEAT_SECONDS, times.SILENCE_SECONDS),
        (times.SILENCE_SECONDS + times.LIVENESS_TTL_SECONDS, times.REJOIN_SECONDS),
        # the end of a generation
        (launcher_seconds("kRestartGraceNs") + times.URGENT_SECONDS, times.LEAVE_SECONDS),
        (
            launcher_seconds("kRestartGraceNs")
            + launcher_seconds("kUndisturbedNs")
            + launcher_seconds("kSurvivorNs")
            + launcher_seconds("kDyingNs"),
            times.FINISH_SECONDS,
        ),
        (times.LIVENESS_TTL_SECONDS + times.SILENCE_SECONDS, times.SILENT_SECONDS),
        (launcher_seconds("kStuckNs") + times.URGENT_SECONDS, times.OBSTINATE_SECONDS),
        # a checkpoint on demand: its ranks stand still until the operator has heard of it, and its order has arrived
        (READ_SECONDS + 2 * times.URGENT_SECONDS, torch_seconds("HOLD_SECONDS")),
        # a pause: its operator has the last pod's result, and its word has arrived
        (times.URGENT_SECONDS, times.PAUSE_UNENDED_SECONDS),
        (times.PAUSE_TURN_SECONDS + times.PAUSE_UNENDED_SECONDS, MINIMUM_DEADLINE_NS / 1e9),
        # a job that does not move
        (MINIMUM_DEADLINE_NS / 1e9, times.IDLE_SECONDS),
        (launcher_seconds("kBlockedNs") + launcher_seconds("kSampleNs"), times.IDLE_SECONDS),
        (times.RAISED_SECONDS, MINIMUM_DEADLINE_NS / 1e9),
        (MINIMUM_DEADLINE_NS / 1e9 + times.ANSWERED_SECONDS, times.IDLE_SECONDS),
        (times.IDLE_SECONDS, times.LULL_SECONDS),
        (times.LULL_SECONDS, times.PATIENCE_SECONDS),
        # two operators: the leading operator gives up before the next takes over
        (RETRY_SECONDS, RENEW_DEADLINE_SECONDS),
        (RENEW_DEADLINE_SECONDS, LEASE_SECONDS),
    ],
)
def test_a_wait_is_longer_than_what_it_waits_for(first: float, second: float) -> None:
    assert first < second


def test_the_executors_time_is_the_executors() -> None:
    assert links.TURN_SECONDS == times.PAUSE_TURN_SECONDS


def test_the_scripts_time_is_the_operators() -> None:
    assert torch_seconds("SAVE_SECONDS") == times.SAVE_SECONDS


def test_the_launchers_time_is_the_launchers() -> None:
    """Check the launcher's time that the text of a fault names."""
    assert launcher_seconds("kStuckNs") == times.LAUNCHER_STUCK_SECONDS
