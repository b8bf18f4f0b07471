"""``torch.distributed.checkpoint`` through the store: real FSDP2 and DTensor, over Gloo, on two to four ranks."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from falcon_agent.checkpoint.store import Store
from tests.integration import forking

PROGRAM = Path(__file__).parent / "programs" / "distributed.py"
AGENT = Path(__file__).parents[3] / "agent"
MIB = 1 << 20
pytestmark = pytest.mark.timeout(300)


def run(name: str, folder: Path, ranks: int) -> str:
    """Run a story on so many ranks, in buffers of their own; return what they logged."""
    store = Path(tempfile.mkdtemp(prefix="falcon-checkpoint-", dir="/dev/shm"))
    try:
        Store(store, ranks=ranks, memory_bytes=ranks * 32 * MIB).make()
        common = {"PYTHONPATH": str(AGENT), "FALCON_CHECKPOINT_DIR": str(store)}
        ended = forking.run([str(PROGRAM), name, str(folder)], [{}] * ranks, common, timeout_seconds=200)
    finally:
        shutil.rmtree(store)
    said = "\n".join(ended.stderr)
    assert ended.codes == [0] * ranks, said
    return said


STORIES = {
    "fsdp2_in_the_same_layout": "",
    "fsdp2_saved_asynchronously": "",
    "the_step_can_be_the_name": "",
    "a_damaged_step_falls_back_to_the_one_before": "chunk 1 of 1 of rank 1's checkpoint of step 6 in",
    "what_ranks_have_in_common_is_written_once": "",
    "what_cannot_be_done_says_so": "",
}


@pytest.mark.parametrize("name", STORIES)
def test_in_memory(name: str, tmp_path: Path) -> None:
    assert STORIES[name] in run(name, tmp_path, ranks=2)


def test_fsdp2_on_three_ranks_whose_shards_are_of_unequal_size(tmp_path: Path) -> None:
    run("fsdp2_in_the_same_layout", tmp_path, ranks=3)


@pytest.mark.parametrize(("before", "after"), [pytest.param(4, 2, marks=pytest.mark.slow), (2, 3)])
def test_another_number_of_ranks_loads_from_the_folder(before: int, after: int, tmp_path: Path) -> None:
    run("saved_for_another_layout", tmp_path, ranks=before)
    run("loaded_in_another_layout", tmp_path, ranks=after)


@pytest.mark.slow
def test_another_number_of_ranks_passes_over_what_is_damaged(tmp_path: Path) -> None:
    run("saved_for_another_layout", tmp_path, ranks=3)
    said = run("loaded_in_another_layout_past_a_damaged_file", tmp_path, ranks=2)
    assert "of rank 1's checkpoint of step 6 in" in said
