"""Accept connections of clients that are not verified yet: any pod of the cluster may be one.

``places`` decides who may connect, and does no I/O. ``listener`` accepts connections within these limits. ``pages``
serves health and metrics behind such a listener. ``access`` asks the API server whose token a client shows, and whether
it may read a page; ``token_answers`` keeps the answers.
"""
