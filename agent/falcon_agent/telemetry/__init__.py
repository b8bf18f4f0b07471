"""Counters that serve as evidence of a cause."""
