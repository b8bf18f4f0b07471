"""Keep the pod's checkpoints in memory: the agent owns the memory, the ranks write to it."""
