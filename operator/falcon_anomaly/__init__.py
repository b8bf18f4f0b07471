"""Compare the series of a job's ranks, and say which rank differs.

What one rank shows by itself, its agent finds (``falcon_core.anomalies``). Here the series of all ranks meet.
"""
