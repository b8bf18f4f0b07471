"""How long the planning decisions take, how that grows with size, and how far from the optimum they are."""
