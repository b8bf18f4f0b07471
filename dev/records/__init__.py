"""Record what the operator decides in stories and simulations, so that two commits can be compared exactly."""
