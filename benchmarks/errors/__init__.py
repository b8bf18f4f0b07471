"""Error lines: how fast they are found, and how often a healthy line is taken for one."""
