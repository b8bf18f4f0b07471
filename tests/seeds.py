"""The seeds of tests whose noise is drawn."""

from __future__ import annotations

from typing import Any

import pytest


def seeds(count: int) -> list[Any]:
    """Return the seeds of a test: the first is for each run, the others are for ``make test-slow``.

    How many of twenty seeds are judged rightly is what ``python -m evaluation.real_jobs`` measures.
    """
    return [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, count))]
