"""Training that fails in each of its lives with the next of some lines, and ends well after the last one.

A line that begins with an exception's name is raised, any other is printed, and the process exits with code 1.

LINES='["KeyError: 1", "Segmentation fault"]' torchrun --nproc-per-node 1 last_words.py
"""

from __future__ import annotations

import json
import os
import re
import sys

_EXCEPTION = re.compile(r"(?P<module>(?:[a-z_]\w*\.)*)(?P<name>[A-Za-z]\w*(?:Error|Exception)): (?P<message>.*)")


def main() -> None:
    lines = json.loads(os.environ["LINES"])
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if life >= len(lines):
        return
    raised = _EXCEPTION.fullmatch(lines[life])
    if raised is not None:
        module = raised["module"].rstrip(".") or "builtins"
        raise type(raised["name"], (Exception,), {"__module__": module})(raised["message"])
    print(lines[life], file=sys.stderr, flush=True)
    raise SystemExit(1)


if __name__ == "__main__":
    main()
