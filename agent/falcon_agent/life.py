"""One life of the sidecar's process: settings, logs, and then the agent until it is ended."""

from __future__ import annotations

import asyncio

from falcon_agent.agent import Agent
from falcon_agent.settings import EXIT_CONFIG, load_settings
from falcon_agent.starting import begin


def live() -> int:
    """Read the settings and run the agent. Return the exit code: 78 for settings that cannot be used."""
    settings = begin("falcon-agent", load_settings)
    if settings is None:
        return EXIT_CONFIG
    asyncio.run(Agent(settings).run())
    return 0
