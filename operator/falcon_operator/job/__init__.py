"""Decide what to do about one job, and do it: observe, decide, write, act."""
