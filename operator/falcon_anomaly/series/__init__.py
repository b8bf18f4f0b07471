"""Hold the newest two hours of a job's series in bounded memory. No module here does I/O."""
