"""Measure what Falcon does ahead of a failure: spares that are claimed, machines and links that are checked."""
