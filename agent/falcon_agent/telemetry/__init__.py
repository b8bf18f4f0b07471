"""Read counters that serve as evidence of a cause."""
