"""Ask a cluster's Prometheus, where an administrator wants that."""
