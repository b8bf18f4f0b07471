"""Which rings are read at scale: the suspects', for as long as something speaks against them."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import numpy as np

from falcon_sim.agents import Agents
from falcon_sim.job.model import JobModel
from falcon_sim.job.scenario import parse

TENSOR, CULPRIT = 4, 6
JOB = {
    "parallelism": {"data": 4, "pipeline": 2, "tensor": TENSOR},
    "procs_per_node": TENSOR,
    "microbatches": 4,
    "forward_seconds": 0.05,
    "backward_seconds": 0.1,
    "tensor_seconds": 0.01,
    "noise": 0.01,
}
FIRST_OF_EACH = set(range(0, 32, TENSOR))
CULPRITS_GROUP = set(range(4, 8))


class _Watched:
    """A job whose rings are read by two sentinels and by the search for suspects."""

    def __init__(self) -> None:
        scenario = parse(msgspec.json.encode({"name": "x", "job": JOB, "detection": {"sentinels": 2}}).decode())
        self.model = JobModel(scenario.job, np.random.default_rng(5))
        self.agents = Agents(self.model, scenario.detection)
        self.agents.start()
        self._now = 0.0

    def goes_on(self, looks: int, factor: float, named: Collection[int] = ()) -> None:
        """Run eight iterations for each look, with the culprit slower by ``factor``."""
        conditions = self.model.healthy()
        conditions.compute[CULPRIT] = factor
        for _ in range(looks):
            block = self.model.block(8, conditions)
            begins = self._now + np.concatenate(([0.0], np.cumsum(block.seconds)[:-1]))
            self._now += float(block.seconds.sum())
            self.agents.feed(block, (begins * 1e9).astype(np.int64), 0, 8)
            if factor > 1:
                self.agents.read_suspects(named)

    @property
    def read(self) -> set[int]:
        return {rank for rank in range(32) if self.agents.fresh(rank)}


def test_who_was_suspected_wrongly_is_let_go_and_the_slow_group_is_not() -> None:
    watched = _Watched()
    watched.goes_on(6, factor=1.0)
    assert watched.read == set(watched.agents.sentinels)
    watched.goes_on(12, factor=1.5)
    found = watched.read
    assert found >= CULPRITS_GROUP | FIRST_OF_EACH
    remaining = found - CULPRITS_GROUP - FIRST_OF_EACH - set(watched.agents.sentinels)
    assert len({rank // TENSOR for rank in remaining}) <= 1  # the second of the two groups that wait longest


def test_all_rings_are_read_to_judge_and_let_go_again() -> None:
    watched = _Watched()
    watched.goes_on(6, factor=1.0)
    watched.agents.read_all()
    assert watched.read == set(range(32))
    watched.goes_on(3, factor=1.5)
    assert len(watched.read) < 32
    assert watched.read >= CULPRITS_GROUP


def test_the_named_culprit_is_read_after_it_has_recovered() -> None:
    watched = _Watched()
    watched.goes_on(6, factor=1.0)
    watched.goes_on(4, factor=1.5, named=[CULPRIT])
    for _ in range(12):
        watched.goes_on(1, factor=1.0)
        watched.agents.read_suspects(named=[CULPRIT])
        assert watched.read >= CULPRITS_GROUP
