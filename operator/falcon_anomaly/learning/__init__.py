"""Learn, by kind of job, how small a metric's floor may be: from healthy runs, in versions that are tried first.

``reach`` measures a board, ``probation`` holds measurements until nothing has come of them, ``document`` stores them
with what was learned, ``versions`` makes and tries a version, and ``library`` holds all kinds.
"""
