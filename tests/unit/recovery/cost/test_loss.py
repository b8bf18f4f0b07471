"""What an incident that goes on after a restart has lost: the warm-up of the new generation is no part of it."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.cost.loss import counted
from falcon_core.recovery.model.observation import Look
from falcon_core.recovery.model.slowdown import SlowIncident, SlowLink
from falcon_core.recovery.model.stored import Place
from falcon_core.signals.changepoint.generation_level import SETTLED_ITERATIONS
from tests.unit.recovery.incidents import located
from tests.unit.recovery.seen import MS, NOW, POLICY, replace, seen

LOST = Loss(seconds=0.5, generation=1, counted_iterations=100)
LINK = SlowLink(
    ranks=[Place(rank=number, pod_name=f"gpt2-{number}", node=f"node-{number}") for number in range(2)],
    members=2,
    comm="x",
    excess_ns=50 * MS,
    compute_growth=1.0,
)
OF_A_RANK = located(loss=LOST)
OF_A_LINK = replace(OF_A_RANK, culprit=None, link=LINK, phase="Detected")


def look(warm_up_seconds: list[float], iterations: int) -> Look:
    """Return the second generation: its first iterations take so long, and each later one 50 ms too long."""
    times = [*(round(seconds * 1000) * MS for seconds in warm_up_seconds), *[300 * MS] * iterations][:iterations]
    fields = {
        "iterations": iterations,
        "iteration_ns": times[-16:],
        "compute_ns": [250 * MS] * len(times[-16:]),
        "wait_ns": [0] * len(times[-16:]),
        "healthy_iteration_ns": None,
        "healthy_compute_ns": None,
        "onset": None,
    }
    obs = seen(ranks=dict.fromkeys(range(3), fields), generation=2, now=NOW + 50 + iterations)
    return Look(obs, POLICY)


@pytest.mark.parametrize("slow", [OF_A_RANK, OF_A_LINK], ids=["rank", "link"])
@given(
    warm_up=st.lists(st.floats(0.3, 120.0), max_size=20),
    looks=st.sets(st.integers(1, 3 * SETTLED_ITERATIONS), min_size=1, max_size=20),
)
@example(warm_up=[45.0, 20.0], looks={1, 2, 3, 4, 5, 6})
def test_the_warm_up_of_a_restart_does_not_pay_for_the_next_one(
    slow: SlowIncident, warm_up: list[float], looks: set[int]
) -> None:
    """Check any warm-up, looked at whenever: each iteration of a settled generation has lost 50 ms."""
    for iterations in sorted(looks):
        slow = counted(slow, look(warm_up, iterations), None)
        if iterations < SETTLED_ITERATIONS:
            assert slow.loss == LOST
        else:
            assert slow.loss.seconds == pytest.approx(0.5 + 0.05 * iterations)
