"""The sidecar: drains the ranks' rings, judges each rank by itself, reports, and hands the launcher its plan.

Telemetry never harms training: the agent only reads what the ranks write, may be killed and restarted at any instant,
and whatever it cannot do it leaves undone.
"""
