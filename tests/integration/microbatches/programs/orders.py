"""What the agent would write: the shares that a test asks for, by step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def order(folder: Path, content: Any) -> None:
    """Let the agent's file appear; nothing for None."""
    if content is not None:
        fresh = folder / "agent" / "microbatches.new"
        fresh.write_text(content if isinstance(content, str) else json.dumps(content))
        fresh.rename(folder / "agent" / "microbatches")
