"""A state that all ranks have alike: real ranks in pods of two, each pod with a memory of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from falcon_agent.checkpoint.store import Store
from tests.integration import forking
from tests.integration.checkpoint.ranks import AGENT, MIB, PROGRAMS

PER_POD = 2
pytestmark = pytest.mark.timeout(600)


class Pods:
    """The memory of some pods, and one volume."""

    def __init__(self, base: Path, volume: Path) -> None:
        self._base, self._volume = base, volume

    def lose(self, pod: int) -> None:
        """Lose a pod with its memory."""
        shutil.rmtree(self._base / f"pod{pod}")

    def run(self, name: str, pods: int = 2, **environ: str) -> str:
        """Run a story in so many pods; return what the ranks logged."""
        for pod in range(pods):
            memory = self._base / f"pod{pod}"
            memory.mkdir(exist_ok=True)
            Store(memory, ranks=PER_POD, memory_bytes=PER_POD * 16 * MIB).make()
        ranks = pods * PER_POD
        place = {
            "LOCAL_WORLD_SIZE": str(PER_POD),
            "PYTHONPATH": str(AGENT),
            **environ,
        }
        own = [
            {
                "LOCAL_RANK": str(rank % PER_POD),
                "FALCON_CHECKPOINT_DIR": str(self._base / f"pod{rank // PER_POD}"),
            }
            for rank in range(ranks)
        ]
        ended = forking.run([str(PROGRAMS / "replicated.py"), name, str(self._volume)], own, place, timeout_seconds=500)
        said = "\n".join(ended.stderr)
        assert ended.codes == [0] * ranks, said
        return said

    def held(self, pod: int) -> set[tuple[int, int]]:
        """Return the ranks and steps of a pod's memory which say that other pods have the same."""
        store = Store(self._base / f"pod{pod}", ranks=PER_POD, memory_bytes=PER_POD * 16 * MIB)
        return {(held.rank, held.step) for held in store.held() if held.replicated}


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    base = Path(tempfile.mkdtemp(prefix="falcon-checkpoint-", dir="/dev/shm"))
    yield Pods(base, tmp_path)
    shutil.rmtree(base)


def test_each_pod_keeps_the_state_once_in_shares_of_its_ranks(pods: Pods) -> None:
    pods.run("each_pod_keeps_it_once")
    assert pods.held(1) == {(2, 5), (2, 6), (3, 5), (3, 6)}


def test_a_lost_pods_ranks_get_the_state_from_another_pods_memory(pods: Pods) -> None:
    pods.run("saved_for_the_next")
    pods.lose(0)
    pods.run("loaded_by_the_next")


@pytest.mark.slow
def test_so_do_pods_that_were_added(pods: Pods) -> None:
    pods.run("saved_for_the_next", pods=1)
    pods.run("loaded_by_the_next")


@pytest.mark.slow
def test_with_all_pods_it_is_gone_unless_there_is_a_folder(pods: Pods, tmp_path: Path) -> None:
    pods.run("saved_for_the_next", WITH_FOLDER="1")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"step-{step:012d}.rank-{rank}-of-2.falcon" for step in (5, 6) for rank in (0, 1)], "once"
    for pod in range(2):
        pods.lose(pod)
    pods.run("nothing_is_left", pods=1)
    pods.run("loaded_by_the_next", pods=1, WITH_FOLDER="1")


def test_a_damaged_share_comes_from_the_other_pod(pods: Pods) -> None:
    assert "chunk 1 of 1 of rank 0's checkpoint of step 6 in" in pods.run("one_share_is_damaged_on_each_pod")


def test_ranks_whose_states_differ_are_refused_by_name(pods: Pods) -> None:
    pods.run("ranks_that_differ_are_named")
