"""Numbers in reports on a node: counters of 0, and parts of which there are fewer than expected."""

from __future__ import annotations

import pytest

from falcon_core.errors.quantities import FEWER, LESS, with_shortfall, without_zeros
from falcon_core.errors.table import Source
from tests.unit.errors.lines import class_of


def named(line: str) -> str:
    return class_of(line, Source.CONDITION)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("efa monitor: 31 of 32 EFA devices present", "NicLost"),
        ("efa monitor: 32 of 32 EFA devices present", ""),
        ("port summary: 7 port(s) LinkUp, expected >= 8", "LinkDown"),
        ("port summary: 8 port(s) LinkUp, expected >= 8", ""),
        ("inventory: accelerators expected 16, found 12", "GpuLost"),
        ("inventory: accelerators expected 16, found 16", ""),
        ("physmem: actual RAM size (1583640112 kB) less than minimum allowed (2113929216 kB)", "MachineCheck"),
        ("inventory: 3 of 4 PSUs present", "PowerFailure"),
        ("scheduler: 3 of 4 workers ready on adapter nodes", ""),
        ("disk usage: 40 of 100 GB available", ""),
        ("volume: 3 of 5 GiB available", ""),
        ("GPU 0 clock 1200 MHz, max 1980 MHz", ""),
        ("GPU 0 clock 1200, max 1980", ""),
    ],
)
def test_a_count_below_the_expected_one_is_a_fault_of_the_part(line: str, name: str) -> None:
    assert named(line) == name


@pytest.mark.parametrize("sign", [(": ", ","), ("=", ""), (" ", ",")])
@pytest.mark.parametrize("counter", ["ecc_errors_uncorrected", "xid", "link_downed", "row_remap_failure"])
def test_a_counter_of_0_is_no_fault(counter: str, sign: tuple[str, str]) -> None:
    before, after = sign
    assert named(f"gpu 3 {counter}{before}0{after} temperature 40") == ""
    assert b"0" in without_zeros(f"gpu 3 {counter}{before}10{after} temperature 40".encode())
    assert counter.encode() in without_zeros(f"gpu 3 {counter}{before}12{after} temperature 40".encode())


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("GPU 0 uncorrectable memory errors: 4", "EccError"),
        ("GPU 0 fatal error, requires reset", "GpuFault"),
        ("monitor: GPU 3: 0 fatal errors", ""),
        ("monitor: uncorrectable ECC error GPU 0", "EccError"),
        ("monitor: ECC errors uncorrected total: 0", ""),
    ],
)
def test_the_number_of_a_device_is_no_count_of_its_errors(line: str, name: str) -> None:
    assert named(line) == name


@pytest.mark.parametrize("line", [b"lost GPU 0", b"link down port 0", b"error 0x0", b"error-gpu-0"])
def test_the_number_behind_a_parts_name_stays(line: bytes) -> None:
    assert without_zeros(line) == line


def test_numbers_of_other_units_are_not_compared() -> None:
    assert with_shortfall(b"rate 200 Gb/s, expected 1 Tb/s") == b""
    assert with_shortfall(b"rate 200 Gb/s, expected 400 Gb/s").endswith(LESS)
    assert with_shortfall(b"3 of 4 PSUs present").endswith(FEWER)


def test_names_of_conditions_that_do_not_hold_compare_nothing() -> None:
    assert named("GpuCountProblem=False GPUs expected 8 found 7") == ""


def test_long_lines_of_numbers_are_read_in_time() -> None:
    line = b"expected 8 found 8 of 8 present " * 250
    assert with_shortfall(line) == b""
    assert without_zeros(b"errors 0 " * 900).strip() == b""


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("GPUCount: Expected: expected 8 GPUs, found 8", ""),
        ("GPUCount: Expected: expected 8 GPUs, found 7", "GpuLost"),
        ("inventory: expected 8 GPUs, found 8; GPU 3 has fallen off the bus", "GpuLost"),
        ("inventory: 16 of 16 GPUs, PSU 2 has failed", "PowerFailure"),
    ],
)
def test_a_number_that_is_as_expected_is_no_fault_and_excuses_no_other(line: str, name: str) -> None:
    assert named(line) == name


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("power overload: false; main power fault: false; fan fault: none", ""),
        ("power overload: false; main power fault: true; fan fault: none", "PowerFailure"),
        ("checkpoint error: no space left on device", "DiskFull"),
        ("gpu 3 xid_errors=none", ""),
    ],
)
def test_a_fault_that_is_false_or_none_is_none(line: str, name: str) -> None:
    assert named(line) == name
