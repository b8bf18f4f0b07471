"""What Falcon's ``sitecustomize`` adds to an interpreter's start: ``make venv && python -m benchmarks.launch.python``.

Three interpreters start in turns: without Falcon's folders on ``PYTHONPATH``, with them, and with them and asked for
stacks, as ranks are. Medians of RUNS, in ms.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

RUNS: Final = 100
AGENT: Final = Path(__file__).parents[2] / "agent"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        python_dir, stacks = Path(name) / "python", Path(name) / "stacks"
        python_dir.mkdir()
        stacks.mkdir()
        for folder in ("falcon_site", "falcon_start"):
            (python_dir / folder).symlink_to(AGENT / folder)
        bare = {"PATH": os.environ["PATH"]}
        ours = {**bare, "PYTHONPATH": f"{python_dir}/falcon_site:{python_dir}", "PYTHONDONTWRITEBYTECODE": "1"}
        kinds = {"without": bare, "with": ours, "asked for stacks": {**ours, "FALCON_STACKS": str(stacks)}}
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(RUNS):
            for kind, environment in kinds.items():
                began = time.perf_counter()
                subprocess.run([sys.executable, "-c", "pass"], env=environment, check=True)
                seconds[kind].append(time.perf_counter() - began)
    without = statistics.median(seconds["without"])
    for kind, values in seconds.items():
        median = statistics.median(values)
        print(f"{kind}: {1000 * median:.1f} ms, {1000 * (median - without):+.1f} ms")


if __name__ == "__main__":
    main()
