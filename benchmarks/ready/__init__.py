"""Checked before, ready before: what Falcon does ahead of a failure, measured."""
