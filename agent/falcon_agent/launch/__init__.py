"""Exchange the plan, the status and the output with the launcher."""
