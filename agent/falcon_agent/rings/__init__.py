"""Read the rings of the pod's ranks and follow their iterations."""
