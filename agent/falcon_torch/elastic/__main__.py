"""Run ``falcon_torch.elastic.launch``."""

from __future__ import annotations

import sys

from falcon_torch.elastic.launch import main

sys.exit(main(sys.argv[1:]))
