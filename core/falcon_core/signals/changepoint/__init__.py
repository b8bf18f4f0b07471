"""Find when a series of times has changed, and what it was before."""
