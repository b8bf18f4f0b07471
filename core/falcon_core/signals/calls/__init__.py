"""Read a rank's calls from its ring: which call, how long, how many bytes."""
