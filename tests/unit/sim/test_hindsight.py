"""The bound that FALCON's runs are held against: what who knows all faults ahead could reach."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from evaluation.simulator.falcon import hindsight, priced, stretched
from falcon_sim.job.scenario import Scenario, parse

JOB = {"parallelism": {"data": 4, "pipeline": 2}, "procs_per_node": 2, "microbatches": 16, "noise": 0.0}
SLOW_RANK = {"at_seconds": 100, "duration_seconds": 800, "factor": 2.0, "node": 0, "proc": 0}
SLOW_LINK = {**SLOW_RANK, "factor": 20.0, "kind": "Communication", "peer": 1, "proc": None}


def _scenario(*slow: dict[str, Any]) -> Scenario:
    body = {"name": "x", "run": {"seconds": 1000}, "job": {**JOB, "reduce_seconds": 0.2}, "faults": {"slow": slow}}
    return parse(msgspec.json.encode(body).decode())


def test_without_faults_it_is_the_healthy_speed() -> None:
    one_iteration = (16 + 1) * (0.05 + 0.1) + 0.2 + 0.02 + 0.001  # 1F1B, reduction, optimizer, norm
    assert hindsight(_scenario()) == pytest.approx(60 / one_iteration)


def test_an_exchange_is_made_where_it_pays_alone() -> None:
    healthy = hindsight(_scenario())
    dear, cheap = (hindsight(priced(_scenario(SLOW_LINK), price)) for price in (1000.0, 10.0))
    assert dear < cheap < healthy
    assert cheap == pytest.approx(healthy * 0.99)  # ten of 1000 s
    assert dear == pytest.approx(hindsight(priced(_scenario(SLOW_LINK), 2000.0)))  # neither is bought


def test_longer_events_leave_more_to_gain() -> None:
    short = _scenario(SLOW_LINK, SLOW_RANK)
    assert hindsight(short) < hindsight(stretched(short, 4.0))


def test_a_slow_rank_is_shared_around() -> None:
    healthy, found = hindsight(_scenario()), hindsight(_scenario(SLOW_RANK))
    endured = healthy * 0.2 + 0.8 * 60 / (2 * 16 * 0.15 + 0.4)  # about
    assert endured < found < healthy
