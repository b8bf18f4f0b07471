"""Classify why a process or a node failed, from its output, its exit and the kernel's messages."""
