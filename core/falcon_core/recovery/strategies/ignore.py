"""Endure the slowdown (strategy S1). Most are short, and enduring costs only the loss itself (FALCON §5.1)."""

from __future__ import annotations

TYPE = "Ignore"
DEFAULT_OVERHEAD_SECONDS = 0.0
