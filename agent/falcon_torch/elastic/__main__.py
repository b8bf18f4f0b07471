"""Run ``falcon_torch.elastic.launch``."""

from __future__ import annotations

import os
import sys

from falcon_torch.elastic.launch import main

code = main(sys.argv[1:])
# An interpreter that ends while a thread is in PyTorch's store may abort, and the exit code would be lost.
os._exit(code)
