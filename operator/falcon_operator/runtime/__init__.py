"""Run the operator's process: leadership, work queue, handlers, health."""
