"""Run the sidecar: drain the ranks' rings, judge each rank by itself, report, and write the launcher's plan.

Telemetry never harms training: the agent only reads what the ranks write. It may be killed and restarted at any
instant. What it cannot do, it leaves undone.
"""
