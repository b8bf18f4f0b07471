"""Manage warm pools and the burn-in of nodes: which nodes are tested, ready, and taken."""
