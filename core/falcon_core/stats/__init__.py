"""Compute medians and other order statistics of small arrays."""
