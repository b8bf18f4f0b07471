"""Test machines and links before the job trains on them."""
