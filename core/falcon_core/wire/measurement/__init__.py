"""Define how machines and links are measured, and what the measurements report."""
