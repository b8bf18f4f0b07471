"""Measure the parts of the benchmark of scale: each is a situation of a large cluster."""
