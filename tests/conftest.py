"""Property tests draw the same examples in every run and are never timed: a busy machine is no failure."""

from hypothesis import settings

settings.register_profile("falcon", deadline=None, derandomize=True)
settings.load_profile("falcon")
