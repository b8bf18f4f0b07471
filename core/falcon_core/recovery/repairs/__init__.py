"""List the repairs of failures: which one a failure leads to, and what is remembered and done.

``restart_ladder`` asks the table for one repair a failure. What the status and the documents say of a class's repair
derives from the same table.
"""
