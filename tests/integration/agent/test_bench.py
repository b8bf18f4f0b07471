"""The benchmark executor on real PyTorch. No GPU is here: what runs on GPUs alone is not shown."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import falcon_bench
from tests.integration.agent.pod import PYTHON

AGENT = Path(falcon_bench.__file__).parents[1]
FLIPS = """
import torch
multiply = torch.matmul
def flipping(left, right, out):
    multiply(left, right, out=out)
    out[2, 3] *= 1.5
    return out
torch.matmul = flipping
"""


def bench(*options: str, program: str = "") -> tuple[int, dict[str, Any]]:
    start = f"import sys; sys.path.insert(0, {str(AGENT)!r})\n{program}\nfrom falcon_bench.__main__ import main"
    command = [PYTHON, "-c", f"{start}\nsys.exit(main())", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def test_rates_of_the_images_pytorch() -> None:
    status, found = bench("--seconds", "0.5")
    assert (status, found["backend"], found["problems"]) == (0, "torch", [])
    assert set(found["scores"]) == {"copy", "fp32"}
    assert [device["name"] for device in found["devices"]] == ["CPU"]


def test_products_that_are_wrong_are_found() -> None:
    status, found = bench("--size", "smoke", program=FLIPS)
    assert status == 1
    assert "its fp32 products are wrong: by " in found["problems"][0]
