"""Counters of a pod's network: what the files say, as rates now and while training was healthy."""

from __future__ import annotations

from pathlib import Path

from falcon_agent.telemetry.network import read_counters
from falcon_agent.telemetry.rates import HEALTHY_SECONDS, SETTLING_SECONDS, Pressure
from falcon_core.wire.launcher.launch import CgroupCounters, LaunchCounters
from falcon_core.wire.network import NetworkCounters, NetworkSignals

SNMP = """Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm InSegs OutSegs RetransSegs
Tcp: 1 500 1000 7
"""


def adapter(folder: Path, name: str, **counters: str) -> None:
    place = folder / name / "ports" / "1" / "hw_counters"
    place.mkdir(parents=True)
    for counter, value in counters.items():
        (place / counter).write_text(value)


def test_tcp_and_all_adapters_are_read(tmp_path: Path) -> None:
    snmp = tmp_path / "snmp"
    snmp.write_text(SNMP)
    adapter(tmp_path / "ib", "mlx5_0", rp_cnp_handled="4\n", out_of_sequence="1\n", packet_seq_err="2\n")
    adapter(tmp_path / "ib", "mlx5_1", rp_cnp_handled="5\n", local_ack_timeout_err="nonsense\n")
    found = read_counters(snmp, tmp_path / "ib")
    assert found == NetworkCounters(sent=1000, again=7, congested=9, faulty=3)


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    assert read_counters(tmp_path / "none", tmp_path / "ib") == NetworkCounters()
    (tmp_path / "snmp").write_text("Tcp: OutSegs RetransSegs\nTcp: 5\n")
    assert read_counters(tmp_path / "snmp", tmp_path / "ib") == NetworkCounters()


def test_this_machines_own_can_be_read() -> None:
    found = read_counters()
    assert found.sent is not None
    assert found.again is not None


def fed(readings: list[NetworkCounters | None], onset_second: int | None = None) -> NetworkSignals | None:
    """Return the signals after a reading a second; ``onset_second``: since when training is slow."""
    pressure = Pressure()
    for second, network in enumerate(readings):
        slow = onset_second is not None and second >= onset_second
        pressure.feed(
            LaunchCounters(unix_ns=second * 10**9, cgroup=CgroupCounters(), network=network),
            training=True,
            onset_unix_ns=onset_second * 10**9 if slow and onset_second is not None else None,
        )
    return pressure.network()


def totals(seconds: int, again: int, *, since: NetworkCounters | None = None) -> list[NetworkCounters]:
    """Return totals of so many seconds with 1000 segments each, of which so many were sent again."""
    begun = since or NetworkCounters(sent=0, again=0)
    assert begun.sent is not None
    assert begun.again is not None
    return [
        NetworkCounters(sent=begun.sent + 1000 * second, again=begun.again + again * second)
        for second in range(1, seconds + 1)
    ]


def test_the_rate_since_the_onset_stands_beside_the_healthy_one() -> None:
    healthy = totals(int(HEALTHY_SECONDS + SETTLING_SECONDS), 1)
    slow = totals(8, 50, since=healthy[-1])
    found = fed([*healthy, *slow], onset_second=len(healthy) - 1)
    assert found is not None
    assert (found.again_ppm, found.healthy_again_ppm) == (50_000, 1_000)
    assert (found.congested_a_second, found.faulty_a_second) == (-1, -1), "there is no adapter"


def test_counters_that_begin_anew_or_are_missing_give_no_rate() -> None:
    assert fed([None, None]) == NetworkSignals()
    assert fed([NetworkCounters(sent=9, again=9), NetworkCounters(sent=1, again=0)]) == NetworkSignals()
    assert fed([NetworkCounters(sent=9, again=9)]) is None


def test_notices_and_faults_of_adapters_are_counted_by_the_second() -> None:
    found = fed([NetworkCounters(congested=10 * second, faulty=second) for second in range(6)])
    assert found is not None
    assert (found.congested_a_second, found.faulty_a_second) == (10, 1)
