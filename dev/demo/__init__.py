"""Show the story that Falcon exists for, on a real cluster: `make demo`."""
