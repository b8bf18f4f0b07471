"""All Kubernetes I/O."""
