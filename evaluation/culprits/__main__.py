"""``python -m evaluation.culprits [TRIALS]``: who is to blame, measured. Prints Markdown tables.

TRIALS (default 12) is for 64 ranks; 256 and 1 024 ranks get a quarter of it. A few minutes.
"""

from __future__ import annotations

import sys

from evaluation.culprits import confusion, cost, real_jobs


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    few = max(1, trials // 4)
    tables = (
        real_jobs.table,
        lambda: confusion.matrix("64", trials),
        lambda: confusion.matrix("64", trials, noise=0.10),
        lambda: confusion.matrix("256", few),
        lambda: confusion.matrix("1024", few),
        lambda: confusion.links("64", trials),
        lambda: confusion.links("256", few),
        lambda: confusion.sensitivity(trials // 2),
        lambda: confusion.unseen(trials),
        cost.table,
    )
    for table in tables:
        print("\n".join(table()), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
