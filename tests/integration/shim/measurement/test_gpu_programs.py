"""The programs of tests/gpu on Gloo, under the real shim: what does not need a GPU is proven here."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.shim.jobs import PYTHON
from tests.gpu import experiments
from tests.gpu.experiments import KINDS

pytestmark = pytest.mark.timeout(400)  # several imports of PyTorch on a shared core
ON_CPU = {"TRAIN_ON": "cpu"}
ITERATIONS = 120


@pytest.fixture(autouse=True)
def _built() -> None:
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: run the tests through make test-integration")


RECORDED = ("fsdp", "pipeline")  # unit agent/rings/test_nccl_records finds their iterations in recorded rings


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.slow] * (kind in RECORDED)) for kind in KINDS if kind != "all_reduce"],
)
def test_the_iterations_of_each_kind_of_job_are_found(kind: str, tmp_path: Path) -> None:
    experiments.expect_iterations(experiments.iterations_of(kind, tmp_path, ITERATIONS, ON_CPU), ITERATIONS)


@pytest.mark.alone
def test_the_iterations_of_a_job_of_equal_calls_are_found_by_the_gaps_between_them(tmp_path: Path) -> None:
    found = experiments.iterations_of("all_reduce", tmp_path, ITERATIONS, ON_CPU)
    experiments.expect_iterations(found, ITERATIONS)


@pytest.mark.slow  # unit agent/rings/test_nccl_records names the delayed rank of recorded rings
@pytest.mark.alone  # beside other tests, any rank may compute slowly
def test_the_delayed_rank_is_named(tmp_path: Path) -> None:
    experiments.expect_slow_rank(experiments.culprits(tmp_path, 160, 0.2, ON_CPU))


def test_processes_end_as_they_do_without_the_shim(tmp_path: Path) -> None:
    bare = experiments.ends(9, tmp_path, False, ON_CPU)
    hooked = experiments.ends(9, tmp_path, True, ON_CPU)
    assert hooked.ends == bare.ends
    assert (bare.rings, hooked.rings) == (0, 9), "each process is a rank of its own"
    assert hooked.ends["returns"] == {"code 0": 1}
    assert hooked.ends["SIGTERM"] == {"SIGTERM": 1}
