"""Answer for each strategy what it would do now, and apply the cheapest one that is due."""
