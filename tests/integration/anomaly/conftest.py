"""Pods with real agents, as in the tests of the agent."""

from tests.integration.agent.conftest import make_pod, site

__all__ = ["make_pod", "site"]
