"""Define what an agent reports, and check what arrives."""
