"""S1: endure the slowdown. Most are short, and enduring costs nothing but the loss itself (FALCON §5.1)."""

from __future__ import annotations

TYPE = "Ignore"
DEFAULT_OVERHEAD_SECONDS = 0.0
