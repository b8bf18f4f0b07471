"""What the operator costs in a large cluster.

make venv cluster-build && python -m benchmarks.scale            # 12 800 pods on as many nodes; some minutes
make venv cluster-build && python -m benchmarks.scale --check    # exit code 1 where a limit is not kept
make venv cluster-build && python -m benchmarks.scale --write    # also writes the tables into RESULTS.md
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from pathlib import Path
from typing import Final

from benchmarks.scale import idle, startup

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = Path(__file__).with_name("RESULTS.md")
PODS: Final = 12_800
BEGIN, END = "<!-- measured -->\n", "<!-- end of measured -->\n"


def provenance() -> str:
    """Say when the tables were measured, and with which code."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return f"*Commit {commit}, {when}, load average {os.getloadavg()[0]:.1f}.*\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="exit code 1 where a limit is not kept")
    parser.add_argument("--write", action="store_true", help="write the tables into RESULTS.md")
    parser.add_argument("--pods", type=int, default=PODS, help=f"pods in the cluster, and nodes (default {PODS})")
    parser.add_argument("--jobs", type=int, default=idle.JOBS, help=f"jobs that wait (default {idle.JOBS})")
    options = parser.parse_args()
    head = provenance()
    start, quiet = startup.measure(options.pods), idle.measure(options.jobs)
    body = "\n".join([head, start.table(), quiet.table()])
    print(body)
    if options.write:
        before, _, rest = RESULTS.read_text().partition(BEGIN)
        RESULTS.write_text(f"{before}{BEGIN}\n{body}\n{END}{rest.partition(END)[2]}")
    short = [*start.falls_short(), *quiet.falls_short()]
    for limit in short:
        print(f"Falls short: {limit}")
    return 1 if options.check and short else 0


if __name__ == "__main__":
    raise SystemExit(main())
