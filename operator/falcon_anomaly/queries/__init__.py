"""Say which queries a cluster's Prometheus answers for the service, and which rank each series belongs to. No I/O."""
