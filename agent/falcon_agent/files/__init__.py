"""Read files that a training process may have replaced."""
