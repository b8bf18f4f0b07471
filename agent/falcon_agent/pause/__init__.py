"""Hold the pod's ranks still for a measurement."""
