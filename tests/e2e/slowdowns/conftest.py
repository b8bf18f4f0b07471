"""Ranks and links are judged by their speed in all tests of this folder."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def quiet_machine(quiet: None) -> None:
    """Begin each test on a quiet machine."""
