"""What NCCL and CUDA do with the shim in the process: graphs, non-blocking communicators, its plugin, and ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from falcon_core.wire.launcher.control import Mode
from tests.gpu import experiments
from tests.gpu.experiments import CAPTURES, LAUNCHES, ON_GPU

pytestmark = pytest.mark.timeout(900)
GRAPHS = 100  # in each mode


@pytest.mark.parametrize("mode", CAPTURES)
def test_calls_are_captured_and_launched_while_others_are_timed(mode: str, tmp_path: Path) -> None:
    for rank in experiments.graphs(mode, GRAPHS, tmp_path):
        assert rank.captured == GRAPHS
        assert rank.launched == LAUNCHES * GRAPHS
        assert rank.timed > 0


def test_a_split_of_a_communicator_that_does_not_block_keeps_its_parent(tmp_path: Path) -> None:
    ranks, warnings = experiments.non_blocking(tmp_path)
    for rank in ranks:
        assert rank.communicators >= 4, "the world and three groups"
        assert rank.with_parent >= 3
        assert rank.calls >= 200
        assert rank.failed == 0
    for ring in tmp_path.glob("*.ring"):
        ring.unlink()
    (tmp_path / "nccl.log").unlink(missing_ok=True)
    assert warnings == experiments.non_blocking(tmp_path, shim=False)[1], "NCCL warns of nothing that the shim does"


def test_a_job_that_no_hook_sees_is_seen_by_the_plugin(tmp_path: Path) -> None:
    for rank in experiments.by_plugin("ddp", tmp_path, 200):
        assert rank.period_calls is not None
        assert rank.iterations >= 160


def test_processes_end_as_they_do_without_the_shim(tmp_path: Path) -> None:
    bare = experiments.ends(27, tmp_path, False, ON_GPU)
    hooked = experiments.ends(27, tmp_path, True, ON_GPU)
    assert hooked.ends == bare.ends
    assert hooked.rings == 27, "each process is a rank of its own"


def test_every_call_is_timed_as_long_as_its_kernel_runs(tmp_path: Path) -> None:
    """CUPTI sees a kernel alone; the events around it also see what lies between it and them."""
    for rank, measured in enumerate(experiments.calls(tmp_path, 5, Mode.PROFILE)):
        events = experiments.device_times(tmp_path, rank, len(measured.device_ns))
        assert len(events) == len(measured.device_ns) > 0
        shares = sorted(kernel / event for kernel, event in zip(measured.device_ns, events, strict=True))
        assert shares[len(shares) // 2] <= 1.05, "an event that is shorter than its kernel"
