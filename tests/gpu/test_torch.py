"""What falcon_torch and falcon_bench do on a GPU: a state in memory, micro-batches that move, how fast the GPU is."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.shim.jobs import PYTHON, RANKS
from falcon_agent.checkpoint.store import Store
from tests.gpu import experiments
from tests.gpu.experiments import ON_GPU
from tests.integration.microbatches.test_sharing import AGENT, STEPS, in_turn, train, wanted

pytestmark = pytest.mark.timeout(900)
BUFFER_BYTES = 512 << 20


def test_a_state_on_a_gpu_is_kept_in_memory_and_comes_back_bit_for_bit(tmp_path: Path) -> None:
    with experiments.scratch() as memory:
        Store(Path(memory), ranks=RANKS, memory_bytes=RANKS * 2 * BUFFER_BYTES).make()
        assert all(kept.seconds > 0 for kept in experiments.checkpoint("save", Path(memory), tmp_path, ON_GPU))
        experiments.checkpoint("load", Path(memory), tmp_path, ON_GPU)


def test_micro_batches_move_between_gpus_and_the_losses_stay(tmp_path: Path) -> None:
    orders: dict[int, Any] = {5: wanted([1, 7]), 20: wanted([6, 2]), 30: wanted([4, 4])}
    shared = train(tmp_path / "shared", orders, ranks=2, more=ON_GPU)
    even = train(tmp_path / "even", {}, ranks=2, more=ON_GPU)
    assert [shares for _, shares, before in in_turn(shared) if shares != before] == [[1, 7], [6, 2], [4, 4]]
    for step in range(STEPS):
        seen = [of_rank[step] for of_rank in shared]
        assert seen[0][0] == seen[1][0], "both ranks change at the same step"
        assert seen[0][1] + seen[1][1] == list(range(8))
        assert seen[0][2] == pytest.approx(even[0][step][2], rel=1e-9), "the loss curve is the even split's"


@pytest.mark.parametrize("size", ["smoke", "full"])
def test_the_benchmark_measures_all_that_a_gpu_has(size: str) -> None:
    done = subprocess.run(
        [str(PYTHON), "-m", "falcon_bench", "--size", size, "--json"],
        env={**os.environ, "PYTHONPATH": str(AGENT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(found)
    kinds = {"bf16"} if size == "smoke" else {"copy", "host_to_device", "device_to_host", "fp32", "fp16", "bf16"}
    assert found["problems"] == []
    assert kinds <= found["scores"].keys()
    assert all(score > 0 for score in found["scores"].values())
