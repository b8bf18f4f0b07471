"""Run a real Kubernetes of several nodes on one machine, for development, demo and tests.

Every node is a network namespace with its own containerd, kubelet, kube-proxy, pod subnet and CPU capacity, joined by
one bridge; the control plane runs in the root namespace. ``python -m dev.cluster`` is the command line; ``faults`` has
the injectors that the demo and the tests share.
"""
