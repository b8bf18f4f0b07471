"""Say of each strategy against slowdowns what it would do, and what keeps it from being possible."""
