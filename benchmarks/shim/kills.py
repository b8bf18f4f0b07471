"""A thousand writers killed in a tight loop of appends: ``python -m benchmarks.shim.kills [COUNT]``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.integration.shim.killing import kill_once


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        lives = [kill_once(Path(folder), seed) for seed in range(count)]
    print(
        f"{count} kills: {sum(life.records for life in lives)} records read, {sum(life.torn for life in lives)} torn, "
        f"{sum(life.out_of_order for life in lives)} out of order, {sum(life.unaccounted for life in lives)} "
        f"unaccounted for; lost to the lap {sum(life.lost for life in lives)}, lives with a hole "
        f"{sum(life.holes > 0 for life in lives)} (at most {max(life.holes for life in lives)} each); slowest read "
        f"{max(life.slowest_read_seconds for life in lives) * 1e3:.1f} ms"
    )


if __name__ == "__main__":
    main()
