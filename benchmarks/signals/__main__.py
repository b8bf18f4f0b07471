"""Every table of the signals, as Markdown: ``python -m benchmarks.signals [--quick] [--data ../shared/data]``."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.signals.changes import healthy_table, sick_table
from benchmarks.signals.cost import LENGTHS, QUICK_LENGTHS, change_point_table, memory_table, poll_table
from benchmarks.signals.periods import period_table
from benchmarks.signals.series import HEALTHY_LENGTHS
from benchmarks.signals.starts import start_table
from benchmarks.signals.tcpd import tcpd_table

_ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.signals", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few seeds and short series: a minute")
    parser.add_argument("--data", type=Path, default=_ROOT / "../shared/data", help="folder with tcpd/")
    options = parser.parse_args()
    quick: bool = options.quick
    print("## Healthy\n")
    lengths = HEALTHY_LENGTHS[:1] if quick else HEALTHY_LENGTHS
    print(healthy_table(2 if quick else 20, 2 if quick else 5, lengths), flush=True)
    print("## Sick\n")
    print(sick_table(3 if quick else 100, 3 if quick else 20), flush=True)
    print("## Slow from the start\n")
    print(start_table(3 if quick else 20), flush=True)
    print("## Period\n")
    print(period_table(2 if quick else 20), flush=True)
    print("## Public series\n")
    tcpd = options.data / "tcpd"
    print(tcpd_table(tcpd) if tcpd.is_dir() else f"{tcpd} is not there: left out.\n", flush=True)
    print("## Cost\n")
    print(change_point_table(QUICK_LENGTHS if quick else LENGTHS), flush=True)
    print(poll_table(100 if quick else 600), flush=True)
    print(memory_table(100 if quick else 4000), flush=True)


if __name__ == "__main__":
    main()
