"""Hold the ranks still for a moment, and measure machines and links meanwhile."""
