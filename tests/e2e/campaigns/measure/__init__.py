"""Measure what faults lead to on the real cluster, on the stage of the campaigns that test it."""
