"""Jobs, clusters and faults that do not exist: they emit wire-format records into core's own signals and recovery.

``falcon-sim scenario.yaml`` runs one scenario. No decision is made here that core makes, and no decision is
told what is broken: it sees ring records, process ends, leases and measured probes, as in production.
"""
