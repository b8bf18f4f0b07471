"""What is done about slow nodes, processes and links on the real cluster (README.md: fail-slow)."""
