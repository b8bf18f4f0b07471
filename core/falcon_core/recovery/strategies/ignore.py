"""Endure the slowdown (strategy S1). Most are short, and enduring costs only the loss itself (FALCON §5.1)."""

from __future__ import annotations

from typing import Final

from falcon_core.recovery.strategies.strategy_type import StrategyType

TYPE: Final = "Ignore"
FACTS: Final = StrategyType(name=TYPE, explanation="Ignore waits.", default_seconds=0.0, by_default=True)
