"""Keep a rank's state in memory, and find it again after a restart."""
