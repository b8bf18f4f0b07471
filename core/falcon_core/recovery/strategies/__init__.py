"""Build the repairs of a slowdown: what each does, and what keeps it from being possible."""
