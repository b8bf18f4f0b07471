"""Draw the records that the machines of a scene write."""
