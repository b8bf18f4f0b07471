"""What the operator costs in a large cluster, against a real etcd and a real kube-apiserver."""
