"""Make all calls to Kubernetes."""
