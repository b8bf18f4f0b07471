"""Carries out what the recovery decides beyond the job's own objects."""
