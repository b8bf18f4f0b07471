"""Two ranks save one checkpoint folder, and a node is lost while it is copied: no half checkpoint is ever durable."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dev.cluster import faults
from dev.kubectl import Json, Kubectl, wait_for
from tests.e2e.jobs import Job, training_job, with_script

STEPS = 500
EVERY = 100
MEBIBYTES = 48
STATE = "trainer_state.json"
# A shard's copy takes five seconds at this rate: the node is lost in the middle of it.
DIRECTORY = {"path": "/saved", "memory": "512Mi", "copyTo": "/checkpoints/run", "bandwidth": "10M"}


class DurableFolder:
    """Looks again and again at what another node would find, and keeps the checkpoints that lack a part."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.halves: set[str] = set()
        self.looks = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def steps(self) -> list[int]:
        """Return the steps of the checkpoints that are durable, and note those that are not complete."""
        found = sorted(self.path.glob("checkpoint-*"))
        self.halves |= {str(folder) for folder in found if not self._is_whole(folder)}
        return sorted(int(folder.name.removeprefix("checkpoint-")) for folder in found)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            self.steps()
            self.looks += 1

    @staticmethod
    def _is_whole(folder: Path) -> bool:
        try:
            ranks = json.loads((folder / STATE).read_text())["ranks"]
            return all((folder / f"shard-{rank}.pt").stat().st_size > MEBIBYTES << 20 for rank in range(ranks))
        except FileNotFoundError:
            return not folder.exists()  # it was removed while it was looked at


@pytest.fixture
def durable(checkpoints: str) -> Iterator[DurableFolder]:
    folder = DurableFolder(Path(checkpoints) / "run")
    yield folder
    folder.end()


@pytest.mark.long  # integration/folder/test_node_loss loses a pod after each change of a copy
def test_a_node_lost_in_the_middle_of_a_copy_leaves_the_newest_complete_checkpoint(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job], checkpoints: str, durable: DurableFolder
) -> None:
    spec = {"checkpoint": {"directory": DIRECTORY}, "warmPoolRef": {"name": "spares"}}
    manifest = training_job("sharded", steps=1, replicas=2, checkpoints=checkpoints, spec=spec)
    options = ("/saved", "--steps", str(STEPS), "--every", str(EVERY), "--mebibytes", str(MEBIBYTES))
    job = start(with_script(namespace, manifest, "sharded_saving.py", *options))
    wait_for("a checkpoint is durable", durable.steps, timeout_seconds=240)

    def saved() -> list[int]:
        return [int(line["step"]) for line in job.log_lines() if line["event"] == "saved"]

    before = len(saved())
    newest = wait_for("another is saved", lambda: max(saved()[before:], default=0), timeout_seconds=120)
    victim = job.member(1)
    faults.kill(victim["node"])
    try:
        at_the_loss = durable.steps()
        assert newest not in at_the_loss, "its copy was not complete when the node was lost"
        job.wait("the pod is replaced", lambda s: job.member(1)["podUid"] not in (None, victim["podUid"]), 180)
        job.wait("it has ended", lambda s: s.get("state") == "Succeeded", 300)
    finally:
        faults.heal(victim["node"])
    resumed = [int(line["resumed_from"]) for line in job.log_lines() if line["event"] == "start"]
    print(f"saved to memory: {newest}; durable at the loss: {at_the_loss}; resumed from {resumed}")
    assert resumed[-1] in (at_the_loss[-1], newest)
    assert job.status()["counters"]["restarts"] == 1
    assert durable.looks > 100
    assert durable.halves == set()
    assert durable.steps()[-1] == STEPS // EVERY * EVERY
