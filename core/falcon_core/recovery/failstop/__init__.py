"""Repair ranks, pods and nodes that ended, hang or never started."""
