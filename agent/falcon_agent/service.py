"""Begin a service's life: read its settings, and set up its log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TypeVar

import structlog

from falcon_agent.settings import NodeSettings, Settings, SettingsError

_S = TypeVar("_S", Settings, NodeSettings)


def begin(program: str, load: Callable[[], _S]) -> _S | None:
    """Load the settings and log at their level. None for settings that cannot be used, which are named on stderr."""
    try:
        settings = load()
    except SettingsError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return None
    _configure_logs(settings.log_level)
    return settings


def _configure_logs(level: str) -> None:
    """Log one line of JSON for each event of that level or above."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
    )
