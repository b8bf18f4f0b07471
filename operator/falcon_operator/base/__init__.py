"""Give all rooms their common ground: clock, settings, logs, ports and effects."""
