"""The node's daemon: reads a node's kernel log, links and GPUs, and writes what is wrong as Node conditions."""
