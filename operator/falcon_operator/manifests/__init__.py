"""Build the Kubernetes objects that the operator makes: ``build_*`` functions from values to manifests."""
