"""Generate the definitions of Falcon's kinds from the operator's types: ``python -m dev.crd`` writes them."""
