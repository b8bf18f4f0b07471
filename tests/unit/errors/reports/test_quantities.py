"""Numbers in reports on a node: counters of 0, and parts of which there are fewer than expected."""

from __future__ import annotations

import pytest

from falcon_core.errors.judge import shipped_judge
from falcon_core.errors.quantities import FEWER, LESS, is_as_expected, with_shortfall, without_zeros
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


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("nvme7: critical_warning: 0x00, available_spare 100%", ""),
        ("nvme7: critical_warning: 0x04, available_spare 100%", "DiskError"),
        ("perfquery mlx5_2 port 1: SymbolErrorCounter:.........0 LinkDownedCounter:.....0", ""),
        ("mx-smi: 6 of 8 C500 visible", "GpuLost"),
        ("mx-smi: 8 of 8 C500 visible", ""),
        ("hl-smi lists 7 of 8 accelerators", "GpuLost"),
        ("dashboard shows 5 of 8 GPUs busy", ""),
    ],
)
def test_flags_counters_and_models_are_read_as_their_programs_print_them(line: str, name: str) -> None:
    assert named(line) == name


def test_a_report_whose_numbers_are_as_expected_is_not_judged_by_likeness() -> None:
    line = "GPU 2 PCIe link width x16, expected x16"
    assert is_as_expected(line.encode())
    assert not is_as_expected(b"GPU 2 PCIe link width x8, expected x16")
    assert not is_as_expected(b"GPU 2 PCIe link width x16")
    assert shipped_judge().report(line) is None
