"""Compare the ranks of a job: the culprit of a slowdown or a hang, and its cause."""
