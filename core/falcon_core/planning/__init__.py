"""Compute what repairs cost and how work, roles and workers are best divided."""
