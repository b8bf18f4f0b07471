"""Keep what a job is to be, and what a look at it has found."""
