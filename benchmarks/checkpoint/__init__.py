"""What checkpoints in memory cost training, and how long a load takes."""
