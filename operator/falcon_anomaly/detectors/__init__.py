"""Score windows of series: each module is one detector, a function of arrays. No module here does I/O."""
