"""One strategy a file, named after the strategy: what it costs, when it applies, when it has failed."""
