"""Run the agent's commands for people: replay, and the burn-in of a machine."""
