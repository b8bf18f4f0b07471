"""One job: what is decided about it, and the shell that observes, writes and acts."""
