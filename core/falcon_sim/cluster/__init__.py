"""Model the machines: faults, pods, launchers, tests and checkpoints."""
