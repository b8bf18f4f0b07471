"""Exchange announcements, commands, reports and certificates with gateways and etcd."""
