"""Describe the group of ranks that goes on without a lost one."""
