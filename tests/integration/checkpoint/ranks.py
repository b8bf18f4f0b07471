"""Real ranks of a pod that keep checkpoints, with what an agent would keep beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dev.kubectl import wait_for
from falcon_agent.checkpoint.store import Store
from falcon_agent.launch.run_dir import RunDir
from falcon_core.wire.launcher.launch import CONTROL_FILE
from tests.integration.forking import Rank, Ranks

PROGRAMS = Path(__file__).parent / "programs"
AGENT = Path(__file__).parents[3] / "agent"
RANKS = 3
MIB = 1 << 20


class Job:
    """Ranks of a pod, with what an agent would keep beside them. ``program`` gets the folder as its argument."""

    def __init__(self, place: Path, folder: Path, program: str = "on_demand.py", **environ: str) -> None:
        self.run_dir = RunDir(place / "run")
        self.store = Store(place, ranks=RANKS, memory_bytes=RANKS * 16 * MIB)
        self.store.make()
        self._place, self._folder = place, folder
        self._program, self._environ = PROGRAMS / program, environ
        self._ranks: Ranks | None = None

    def start(self, generation: int) -> None:
        common = {
            "PYTHONPATH": str(AGENT),
            "FALCON_CHECKPOINT_DIR": str(self._place),
            "FALCON_CONTROL": str(self.run_dir.path / CONTROL_FILE),
            "FALCON_GENERATION": str(generation),
            **self._environ,
        }
        ranks = [
            Rank(
                {},
                stdout=self._said(generation, rank),
            )
            for rank in range(RANKS)
        ]
        self._ranks = Ranks([str(self._program), str(self._folder)], ranks, common)

    def _said(self, generation: int, rank: int) -> Path:
        return self._place / f"said-{generation}-{rank}"

    def said(self, generation: int, rank: int) -> list[str]:
        """Return the lines that a rank has printed; none before it has begun."""
        file = self._said(generation, rank)
        return file.read_text().splitlines() if file.exists() else []

    def saved(self, generation: int) -> list[list[int]]:
        """Return the steps that each rank has begun to save."""
        lines = [self.said(generation, rank) for rank in range(RANKS)]
        return [[int(line.split()[1]) for line in said if line.startswith("save ")] for said in lines]

    def safe(self, step: int) -> bool:
        """Check whether all ranks hold a newer step than this that is in the folder, by the agent's own reading."""
        return {held.rank for held in self.store.held() if held.in_folder and held.step > step} == set(range(RANKS))

    def forget(self) -> None:
        """Make the buffers anew, as in another pod."""
        for local_rank in range(RANKS):
            for path in self.store.buffers(local_rank):
                path.unlink()
        self.store.make()

    def end(self) -> None:
        if self._ranks is not None:
            self._ranks.kill()


def await_(what: str, look: Callable[[], object]) -> None:
    wait_for(what, look, timeout_seconds=90)
