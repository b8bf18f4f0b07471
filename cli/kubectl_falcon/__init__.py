"""Explain and steer jobs from kubectl: ``kubectl falcon explain JOB`` and its siblings (docs/job-owner.md).

All calls to the cluster go through the user's own kubectl (``kubectl``), so rights, contexts and ways to log in are
those of kubectl. What is shown is made by pure functions from decoded objects (``objects``). The standard library and
three modules of falcon_core are all that it needs, apart from matplotlib for a picture in a file.
"""
