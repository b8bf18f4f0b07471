"""Observed state → desired status and effects. Pure: no I/O, no clock; ``reconciler.py`` carries the effects out."""
