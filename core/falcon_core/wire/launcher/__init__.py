"""Define the files between the agent, the launcher and the ranks of a pod."""
