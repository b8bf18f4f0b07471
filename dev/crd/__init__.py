"""The definition of TrainingRun, generated from the operator's types: ``python -m dev.crd`` writes it."""
