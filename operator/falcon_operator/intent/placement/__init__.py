"""Choose the nodes of a job's pods, and test them before it trains."""
