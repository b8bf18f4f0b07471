"""Describe what a look shows, what the spec allows, and what the recovery keeps and orders."""
