"""Describe how ranks, stages and pods of a job relate to each other."""
