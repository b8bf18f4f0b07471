"""Let the anomaly service learn from healthy runs: the leader tells it of the jobs, and keeps what it returns."""
