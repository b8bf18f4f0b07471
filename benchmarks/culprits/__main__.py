"""``python -m benchmarks.culprits``: who is to blame, measured. Prints Markdown tables."""

from __future__ import annotations

from benchmarks.culprits import real_jobs

print("\n".join(real_jobs.table()))
