"""Find which rank, group or link explains a slowdown, and what does not."""
