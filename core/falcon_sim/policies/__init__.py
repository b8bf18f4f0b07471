"""Choose repairs as the operator does, as publications did, or with full knowledge."""
