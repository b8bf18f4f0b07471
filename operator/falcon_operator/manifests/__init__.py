"""Kubernetes objects as the operator makes them: ``build_*`` functions from values to manifests."""
