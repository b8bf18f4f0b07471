"""The benchmark executor: its rates, what it says of wrong results, and what it needs in an image."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import falcon_bench
from falcon_bench import load
from falcon_bench.load import TURNS, Work, measure

AGENT = Path(falcon_bench.__file__).parents[1]


class Clock(threading.local):
    """The clock of a device's thread, which only the device's work moves: nothing else on the machine shows in it."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(load, "time", made)
    return made


def sleeping(seconds: float, problem: str = "", sleep: Callable[[float], None] = time.sleep) -> Work:
    """Return a work whose repetition takes so long, and which does one unit."""
    return Work(1.0, lambda times: sleep(seconds * times), lambda: problem)


def _once(begin: Callable[[int], None], clock: Clock) -> Callable[[int], None]:
    """Return a repetition that does it at a turn's first call alone: at each turn there are four."""
    calls = iter(range(4 * TURNS))

    def repeat(times: int) -> None:
        clock.sleep(0.001)
        if next(calls) % 4 == 0:
            begin(times)

    return repeat


def bench(*options: str, program: str = "") -> tuple[int, dict[str, Any], str]:
    """Run it as an image's interpreter does, after ``program``; return status, result, and standard error."""
    start = f"import sys; sys.path.insert(0, {str(AGENT)!r}); sys.argv[0] = 'falcon_bench'\n{program}\n"
    command = [sys.executable, "-c", f"{start}from falcon_bench.__main__ import main; sys.exit(main())", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    lines = done.stdout.splitlines()
    return done.returncode, json.loads(lines[-1]) if lines else {}, done.stderr


def test_each_device_has_its_own_rate_and_its_own_problem(clock: Clock) -> None:
    works = [sleeping(0.01, sleep=clock.sleep), sleeping(0.04, "its results are wrong", clock.sleep)]
    fast, slow = measure({"sleep": works}, {"sleep": 1.0})["sleep"]
    assert fast.steady == pytest.approx(100)
    assert slow.steady == pytest.approx(25)
    assert (fast.problem, slow.problem) == ("", "its results are wrong")


def test_what_takes_a_device_away_now_and_then_lowers_its_rate(clock: Clock) -> None:
    """As a CPU quota does: most blocks are as fast as ever."""
    calls = iter(range(10**9))

    def work(times: int) -> None:
        clock.sleep(0.05 if next(calls) % 10 == 0 else 0.005)

    (rate,) = measure({"work": [Work(1.0, work)]}, {"work": 2.0})["work"]
    assert rate.steady < 0.75 / 0.005


def test_what_disturbs_one_turn_does_not_lower_a_rate(clock: Clock) -> None:
    """As other work on a shared machine does: the kind's last turn is slow as a whole."""
    turns = iter(range(TURNS))
    now = [0]

    def begin(times: int) -> None:
        now[0] = next(turns)

    def work(times: int) -> None:
        clock.sleep(times * (0.05 if now[0] == TURNS - 1 else 0.005))

    found = measure({"turn": [Work(1.0, _once(begin, clock))], "work": [Work(1.0, work)]}, {"turn": 1e-6, "work": 2.0})
    assert found["work"][0].steady > 0.5 / 0.005


def test_a_device_that_fails_ends_the_others_and_is_named() -> None:
    def broken(times: int) -> None:
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")

    with pytest.raises(RuntimeError, match="ECC"):
        measure({"work": [sleeping(0.001), Work(1.0, broken)]}, {"work": 60.0})


@pytest.mark.parametrize(("size", "kinds"), [("smoke", {"fp32"}), ("full", {"copy", "fp32"})])
def test_with_numpy(size: str, kinds: set[str]) -> None:
    status, found, _ = bench("--size", size, "--seconds", "0.4", program="sys.modules['torch'] = None")
    assert (status, found["backend"], found["problems"]) == (0, "numpy", [])
    assert set(found["scores"]) == set(found["spread"]) == kinds
    assert found["devices"] == [{"name": "CPU", "rates": found["scores"]}]
    assert found["skipped"] == dict.fromkeys(("fp16", "bf16", "fp8"), "the container has no PyTorch")
    assert all(rate > 0 for rate in found["scores"].values())


def test_with_the_standard_library_alone() -> None:
    program = "sys.modules['torch'] = sys.modules['numpy'] = None"
    status, found, _ = bench("--seconds", "0.4", "--json", program=program)
    assert (status, found["backend"], set(found["scores"])) == (0, "python", {"copy", "sha256"})
    assert "neither PyTorch nor NumPy" in found["skipped"]["fp32"]


def test_a_machine_that_computes_wrongly_fails() -> None:
    flips = """
sys.modules['torch'] = None
import numpy
multiply = numpy.matmul
def flipping(left, right, out):
    multiply(left, right, out=out)
    out[300, 3] *= 1.5
numpy.matmul = flipping
"""
    status, found, said = bench("--size", "smoke", program=flips)
    assert status == 1
    (problem,) = found["problems"]
    assert problem.startswith("device 0 (CPU): its fp32 products are wrong: by ")
    assert problem in said


def test_a_defect_of_the_executor_fails_no_machine() -> None:
    program = "sys.modules['torch'] = None\nimport falcon_bench.on_numpy as own\nown.works = lambda *_: {}['none']"
    status, found, said = bench(program=program)
    assert (status, found["scores"], found["problems"]) == (0, {}, [])
    assert "KeyError" in said


@pytest.mark.parametrize("options", [("--seconds", "0"), ("--seconds", "nan"), ("--size", "tiny"), ("more",)])
def test_a_wrong_command_line(options: tuple[str, ...]) -> None:
    assert bench(*options)[0] == 2
