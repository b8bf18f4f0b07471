"""Compute what a slowdown costs and what each repair costs."""
