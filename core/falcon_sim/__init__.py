"""Simulate jobs, clusters and faults: they feed wire-format records into core's own signals and recovery.

``falcon-sim scenario.yaml`` runs one scenario. Core makes all its decisions itself, and no decision knows what is
broken: it sees ring records, process ends, leases and measured probes, as in production.
"""
