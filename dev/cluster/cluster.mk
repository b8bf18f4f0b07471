.PHONY: cluster-build cluster-up cluster-down cluster-status
cluster-build: venv ## build Kubernetes, etcd, containerd, helm … from pinned Go modules (10 minutes, once)
	@$(PY) -m dev.cluster build

cluster-up: venv ## a real Kubernetes on this machine: control node, three workers, one spare
	@$(PY) -m dev.cluster up

cluster-down: venv ## stop it and leave nothing behind
	@$(PY) -m dev.cluster down

cluster-status: venv ## what runs, and which faults are on
	@$(PY) -m dev.cluster status
