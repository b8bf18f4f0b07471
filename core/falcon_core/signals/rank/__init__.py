"""Follow one rank from its calls to its signals."""
