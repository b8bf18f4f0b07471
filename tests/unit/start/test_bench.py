"""The program that a burn-in runs in a pool's own image: its executor's rates are its message."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import falcon_start
from falcon_start.bench import MOST_SCORES, scores

AGENT = Path(falcon_start.__file__).parents[1]
EXECUTOR = """
import json, sys
assert sys.argv[1:] == ["--size", "full", "--seconds", "7", "--json"], sys.argv
print("a line of a library")
print(json.dumps({"scores": {"gemm_bf16": 412.5, "h2d": 21}, "seconds": 7.1}))
sys.exit(%d)
"""


def run(folder: Path, status: int) -> tuple[int, str]:
    """Run it beside an executor that ends with this status; return its own status and its message."""
    (folder / "falcon_bench").mkdir()
    (folder / "falcon_bench" / "__main__.py").write_text(EXECUTOR % status)
    (folder / "falcon_bench" / "__init__.py").write_text("")
    message = folder / "message"
    program = f"import sys; sys.path.insert(0, {str(AGENT)!r}); from falcon_start.bench import run;"
    command = [sys.executable, "-S", "-c", f"{program} sys.exit(run('7', {str(message)!r}))"]
    env = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, env=env, cwd=folder, check=False, capture_output=True, timeout=600)
    return done.returncode, message.read_text() if message.exists() else ""


def test_the_executors_rates_become_the_message(tmp_path: Path) -> None:
    status, message = run(tmp_path, 0)
    assert (status, json.loads(message)) == (0, {"scores": {"gemm_bf16": 412.5, "h2d": 21.0}})


def test_an_executor_that_fails_fails_the_test_and_its_output_is_the_message(tmp_path: Path) -> None:
    assert run(tmp_path, 3) == (3, "")


@pytest.mark.parametrize("said", ["", "no json", "[]", '{"scores": 3}', '{"scores": {"a": "fast"}}', "{}"])
def test_what_is_no_rate_is_left_out(said: str) -> None:
    assert scores(said) == {}


def test_rates_fit_into_a_message() -> None:
    many = json.dumps({"scores": {"n" * 200 + str(number): 1.23456789 for number in range(200)} | {"zero": 0}})
    assert len(scores(many)) <= MOST_SCORES
    assert len(json.dumps({"scores": scores(many)})) < 4096
