"""The planning decisions: speed, growth with size, distance from the optimum, and what acting early saves.

    make venv && python -m benchmarks.planning [--plot FILE.svg]

Prints Markdown tables. With ``--plot`` the growth is drawn too (needs matplotlib, a development dependency).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.planning import early
from benchmarks.planning.cases import ALL, Curve


def plot(curves: Sequence[Curve], path: Path) -> None:
    """Draw medians over sizes, both logarithmic. Raises ImportError without matplotlib."""
    import matplotlib as mpl  # type: ignore[import-not-found, unused-ignore]
    from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]

    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot()
    for name, sizes, medians in curves:
        axes.loglog(sizes, medians, marker="o", label=name)
    axes.set(xlabel="size", ylabel="median of one decision [CPU ms]", title="Planning: growth with size")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "falcon"}):  # text as text, the same file each time
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> int:
    parser = argparse.ArgumentParser(description="Speed and growth of the planning decisions.")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the growth (PNG or SVG; needs matplotlib)")
    path = parser.parse_args().plot
    curves: list[Curve] = []
    for case in ALL:
        text, drawn = case()
        print(text, flush=True)
        curves += drawn
    print(early.comparison(), flush=True)
    if path is None:
        return 0
    try:
        plot(curves, path)
    except ImportError:
        print("no plot: matplotlib is not installed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
