"""The sidecar: drains the ranks' rings, judges each rank by itself, reports, and writes the launcher's plan.

Telemetry never harms training: the agent only reads what the ranks write. It may be killed and restarted at any
instant. What it cannot do, it leaves undone.
"""
