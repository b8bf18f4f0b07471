"""Judge training jobs: signals, plans and recovery as pure functions over frozen values.

Nothing here does I/O, reads a clock or knows Kubernetes, so every decision
can be replayed and tested with plain values.
"""

__version__ = "0.1.0"  # of the whole distribution, as in pyproject.toml: the images have no package metadata
