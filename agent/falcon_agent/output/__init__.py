"""Find errors and last words in the output of ranks."""
