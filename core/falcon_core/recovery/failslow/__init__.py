"""Follow open slowdowns, and apply the repair that is due."""
