"""Measure this machine: ``python3 -m falcon_bench --size smoke|full [--seconds N] --json`` prints a JSON line last.

The line holds ``scores`` (rates by kind, of the slowest device; the higher the better), ``spread`` (of that device's
rate over time: interquartile range ÷ median), ``devices`` (their names, and the rates of each), ``skipped`` (kinds of
work that were left out: why), ``backend``, ``seconds`` and ``problems``. Exit status: 0; 1 where a device computes
wrongly or its driver fails; 2 for a wrong command line. What fails in this program itself is on standard error, and no
problem of the machine's.
"""

import argparse
import json
import sys

from falcon_bench.machine import backend, run

SECONDS = {"smoke": 0.25, "full": 3.0}


def main():  # type: () -> int
    """Parse the command line, measure, and print."""
    parser = argparse.ArgumentParser(prog="falcon_bench", description="How fast this machine computes and moves data.")
    parser.add_argument("--size", choices=sorted(SECONDS), default="full", help="smoke: one kind of product alone")
    parser.add_argument("--seconds", type=float, help="under load; default 0.25 (smoke) and 3 (full)")
    parser.add_argument("--json", action="store_true", help="the default, and the only form")
    asked = parser.parse_args()
    if asked.seconds is not None and not 0 < asked.seconds <= 86400:
        parser.error("--seconds has to be more than 0 and at most 86400")
    seconds = SECONDS[asked.size] if asked.seconds is None else asked.seconds
    found = run(backend(), seconds, asked.size == "smoke")
    for problem in found["problems"]:
        sys.stderr.write("falcon_bench: %s\n" % problem)
    sys.stdout.write(json.dumps(found) + "\n")
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
