"""Property tests draw the same examples in every run and are never timed: a busy machine is no failure.

Tests of real processes that fail while a hypervisor takes the CPUs away are repeated (``tests.machine``).
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings

from tests.machine import DISTURBING, CpuTimes, cpu_times, seconds_for_the_machine, stolen_share, wait_for_quiet

settings.register_profile("falcon", deadline=None, derandomize=True)
settings.load_profile("falcon")

_REAL = ("integration", "e2e")  # folders of tests of real processes
_BEGUN = pytest.StashKey[CpuTimes]()
_FAILED = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes long, and others show the most of it; `make test-slow`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Repeat a test of real processes, at most twice, where it fails on a disturbed machine."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.path.relative_to(here).parts[0] in _REAL:
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=2, condition=partial(_disturbed, item)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_BEGUN] = cpu_times()
    item.stash[_FAILED] = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say beside a failure how much CPU time the hypervisor took."""
    report = yield
    if report.failed and _BEGUN in item.stash:
        item.stash[_FAILED] = True
        stolen = stolen_share(item.stash[_BEGUN])
        report.sections.append(("machine", f"a hypervisor took {stolen:.0%} of the CPU time since the test began"))
    return report


def _disturbed(item: pytest.Item) -> bool:
    """Check whether a failed test is worth a repetition, and wait until the machine is fit for it.

    The plugin asks after every test, also after those that passed.
    """
    if not item.stash[_FAILED]:
        return False
    if stolen_share(item.stash[_BEGUN]) <= DISTURBING or seconds_for_the_machine() <= 0:
        return False
    wait_for_quiet(min(30.0, seconds_for_the_machine()))
    return True
