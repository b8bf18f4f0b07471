"""Define the kinds of falcon.dev/v1alpha1 as typed values: TrainingJob, TrainingRun, WarmPool."""
