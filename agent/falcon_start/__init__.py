"""What a rank's interpreter does at its start, when ``falcon-launch`` asks for it: the standard library alone.

Runs in the user's image: Python 3.6 and later.
"""
