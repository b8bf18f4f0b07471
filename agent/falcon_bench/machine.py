"""Measure how fast this machine computes and moves data, with the best library that the image has."""

import importlib
import time
import traceback
from typing import Any  # noqa: F401  in comments

from falcon_bench.load import measure

TORCH, NUMPY, PYTHON = (
    ("torch", "falcon_bench.on_torch"),
    ("numpy", "falcon_bench.on_numpy"),
    ("python", "falcon_bench.on_python"),
)
LIBRARIES = (TORCH, NUMPY, PYTHON)
# While ranks hold the devices and most of the memory: PyTorch would take much of both.
SMALL = (NUMPY, PYTHON)
_PRODUCTS = ("fp32", "fp16", "bf16", "fp8")
_PRODUCTS_SHARE = 3  # of the time, where another kind has 1: they heat


def backend(libraries=LIBRARIES):  # type: (tuple[tuple[str, str], ...]) -> tuple[str, Any]
    """Return the name and the works of the first of these libraries that the image has."""
    for library, module in libraries:
        try:
            return library, importlib.import_module(module)
        except Exception:  # not installed, or its own libraries are missing
            continue
    raise AssertionError("the standard library is there")


def run(chosen, seconds, smoke):  # type: (tuple[str, Any], float, bool) -> dict[str, Any]
    """Measure all kinds, which take turns, for about so many seconds without the start of the libraries.

    ``chosen``: what ``backend`` has returned. ``smoke``: one kind of product alone.
    """
    library, module = chosen
    began = time.perf_counter()
    found = {"backend": library, "problems": []}  # type: dict[str, Any]
    found.update(scores={}, spread={}, devices=[], skipped={})
    try:
        _measure_all(found, module, smoke, seconds)
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
    # Products get more of the time: their rate decides, and devices take a while to settle.
    shares = {kind: _PRODUCTS_SHARE if kind in _PRODUCTS else 1 for kind in all_}
    parts = {kind: seconds * share / sum(shares.values()) for kind, share in shares.items()}
    for kind, rates in measure(all_, parts).items():
        # Training waits for the slowest device, so its rate is the machine's.
        slowest = min(rates, key=lambda rate: rate.steady)
        found["scores"][kind] = float("%.4g" % slowest.steady)
        found["spread"][kind] = round(slowest.spread, 3)
        for place, rate in enumerate(rates):
            found["devices"][place]["rates"][kind] = float("%.4g" % rate.steady)
            if rate.problem:
                found["problems"].append("device %d (%s): %s" % (place, names[place], rate.problem))
