"""The environment of a process that reads its settings from FALCON variables."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TypeVar

import pytest

T = TypeVar("T")


def load_with(environ: Mapping[str, str], load: Callable[[], T]) -> T:
    """Load settings with these FALCON variables and no other FALCON variables."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith("FALCON_"):
                patch.delenv(name)
        for name, value in environ.items():
            patch.setenv(name, value)
        return load()
