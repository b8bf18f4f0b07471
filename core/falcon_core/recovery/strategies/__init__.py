"""The strategies, one in each file: what the strategy costs, when it applies, when it has failed."""
