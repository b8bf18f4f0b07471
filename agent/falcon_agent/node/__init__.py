"""Run the node's daemon: read the kernel log, links and GPUs, and write what is wrong as Node conditions."""
