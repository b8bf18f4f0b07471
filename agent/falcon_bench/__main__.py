"""``python3 -m falcon_bench --size smoke|full [--seconds N] --json``: one line of JSON, which is the last one.

It holds ``scores`` (rates by kind, of the slowest device; the higher the better), ``spread`` (of that device's rate
over time: interquartile range ÷ median), ``devices`` (their names, and the rates of each), ``skipped`` (kinds of work
that were left out: why), ``backend``, ``seconds`` and ``problems``. Exit status: 0; 1 where a device computes wrongly
or its driver fails; 2 for a wrong command line. What fails in this program itself is on standard error, and no problem
of the machine's.
"""

import argparse
import importlib
import json
import sys
import time
import traceback
from typing import Any  # noqa: F401  in comments

from falcon_bench.load import measure

SECONDS = {"smoke": 0.25, "full": 3.0}
_BACKENDS = (
    ("torch", "falcon_bench.on_torch"),
    ("numpy", "falcon_bench.on_numpy"),
    ("python", "falcon_bench.on_python"),
)
_PRODUCTS = ("fp32", "fp16", "bf16", "fp8")
_PRODUCTS_SHARE = 3  # of the time, beside 1 for another kind: they heat


def backend():  # type: () -> tuple[str, Any]
    """Return the name and the works of the best library that the image has."""
    for library, module in _BACKENDS:
        try:
            return library, importlib.import_module(module)
        except Exception:  # not installed, or its own libraries are missing
            continue
    raise AssertionError("the standard library is there")


def run(size, seconds):  # type: (str, float) -> dict[str, Any]
    """Measure all kinds, which take turns, for about so many seconds without the start of the libraries."""
    library, module = backend()
    began = time.perf_counter()
    found = {"backend": library, "problems": []}  # type: dict[str, Any]
    found.update(scores={}, spread={}, devices=[], skipped={})
    try:
        _measure_all(found, module, size == "smoke", seconds)
    except (RuntimeError, OSError) as error:  # PyTorch's, of a device or its driver
        found["problems"].append("%s: %s" % (type(error).__name__, error))
    except Exception:
        traceback.print_exc()
    found["seconds"] = round(time.perf_counter() - began, 3)
    return found


def _measure_all(found, module, smoke, seconds):  # type: (dict[str, Any], Any, bool, float) -> None
    names = [module.name(device) for device in module.devices()] if hasattr(module, "devices") else ["CPU"]
    found["devices"] = [{"name": name, "rates": {}} for name in names]
    all_ = module.works(smoke, found["skipped"])
    shares = {kind: _PRODUCTS_SHARE if kind in _PRODUCTS else 1 for kind in all_}
    parts = {kind: seconds * share / sum(shares.values()) for kind, share in shares.items()}
    for kind, rates in measure(all_, parts).items():
        slowest = min(rates, key=lambda rate: rate.steady)
        found["scores"][kind] = float("%.4g" % slowest.steady)
        found["spread"][kind] = round(slowest.spread, 3)
        for place, rate in enumerate(rates):
            found["devices"][place]["rates"][kind] = float("%.4g" % rate.steady)
            if rate.problem:
                found["problems"].append("device %d (%s): %s" % (place, names[place], rate.problem))


def main():  # type: () -> int
    """Parse the command line, measure, and print."""
    parser = argparse.ArgumentParser(prog="falcon_bench", description="How fast this machine computes and moves data.")
    parser.add_argument("--size", choices=sorted(SECONDS), default="full", help="smoke: one kind of product alone")
    parser.add_argument("--seconds", type=float, help="under load; default 0.25 (smoke) and 3 (full)")
    parser.add_argument("--json", action="store_true", help="the default, and the only form")
    asked = parser.parse_args()
    if asked.seconds is not None and not 0 < asked.seconds <= 86400:
        parser.error("--seconds has to be more than 0 and at most 86400")
    found = run(asked.size, SECONDS[asked.size] if asked.seconds is None else asked.seconds)
    for problem in found["problems"]:
        sys.stderr.write("falcon_bench: %s\n" % problem)
    sys.stdout.write(json.dumps(found) + "\n")
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
