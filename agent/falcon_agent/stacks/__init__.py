"""Sample the stacks of slow ranks and of ranks that hang."""
