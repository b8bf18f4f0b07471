"""The operator's side of gateways and etcd: announcements, commands, reports, certificates."""
