"""The benchmark executor on real PyTorch. No GPU is here: what runs on GPUs alone is not shown."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

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
WITHOUT_FP8 = """
import torch
del torch.float8_e4m3fn
import falcon_bench.on_torch as own
own._kinds = lambda *_: own._GPU_KINDS
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
    assert set(found["skipped"]) == {"fp16", "bf16", "fp8"}
    assert [device["name"] for device in found["devices"]] == ["CPU"]


@pytest.mark.slow  # the two others run the executor
def test_a_kind_that_a_gpu_does_not_have_is_named() -> None:
    """No GPU is here: the CPU stands in its place, under a PyTorch without FP8."""
    status, found = bench("--seconds", "0.5", program=WITHOUT_FP8)
    assert status == 0
    assert set(found["scores"]) == {"copy", "fp32", "fp16", "bf16"}
    assert found["skipped"]["fp8"].startswith("this PyTorch or this GPU has none: ")
    assert "float8_e4m3fn" in found["skipped"]["fp8"]


def test_products_that_are_wrong_are_found() -> None:
    status, found = bench("--size", "smoke", program=FLIPS)
    assert status == 1
    assert "its fp32 products are wrong: by " in found["problems"][0]
