"""Compute how many nodes and spares pay for themselves."""
