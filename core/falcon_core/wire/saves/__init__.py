"""Define how checkpoints in memory and their copies are described."""
