"""Translate a snapshot of pods, nodes and reports into what the recovery sees."""
