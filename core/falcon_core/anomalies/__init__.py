"""Judge what one pod can see by itself: what runs out, and which numbers of its output are none.

No module here does I/O.
"""
