"""Find where iterations begin in a stream of calls."""
