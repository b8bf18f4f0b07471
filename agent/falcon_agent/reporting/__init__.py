"""Decide when the agent reports, and send its reports."""
