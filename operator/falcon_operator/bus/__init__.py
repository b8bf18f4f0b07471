"""The operator's side of etcd: session, access, reports, plans."""
