"""Tests of the shim beside a real NCCL on a GPU (``make test-gpu``): skipped, with the reason, where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.experiments import missing


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = missing()
    for item in items:
        if reason and item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.skip(reason=reason))
