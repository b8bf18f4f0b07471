"""One life of the sidecar's process: settings, logs, and then the agent until it is ended."""

from __future__ import annotations

import asyncio
import logging
import sys

import structlog

from falcon_agent.agent import Agent
from falcon_agent.settings import EXIT_CONFIG, SettingsError, load_settings


def live() -> int:
    """Read the settings and run the agent. Return the exit code: 78 for settings that cannot be used."""
    try:
        settings = load_settings()
    except SettingsError as error:
        print(f"falcon-agent: {error}", file=sys.stderr)
        return EXIT_CONFIG
    configure_logs(settings.log_level)
    asyncio.run(Agent(settings).run())
    return 0


def configure_logs(level: str) -> None:
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
