"""Waits outside known calls are taken out of the ranks' computation, and the newest ones are quoted."""

from __future__ import annotations

from falcon_core.recovery import Look, Policy
from falcon_core.recovery.diagnosis.unseen_waits import taken_out
from falcon_core.recovery.model.observation import Observation, RankSeen
from falcon_core.wire.reporting.messages import Onset, RankSignals

MS = 1_000_000
HEALTHY, SLOW = 12, 4  # reported iterations
POLICY = Policy(job="gpt2", strategies=[("Ignore", None)], world_size=3)


def _rank(number: int, ran: float) -> RankSeen:
    """Return a rank that computes 0.5 s instead of 0.1 s since four iterations, and runs for a share of that time."""
    sent = RankSignals(
        rank=number,
        tracking="Tracking",
        iterations=HEALTHY + SLOW,
        iteration_ns=[110 * MS] * HEALTHY + [510 * MS] * SLOW,
        compute_ns=[100 * MS] * HEALTHY + [500 * MS] * SLOW,
        wait_ns=[0] * (HEALTHY + SLOW),
        healthy_iteration_ns=110 * MS,
        healthy_compute_ns=100 * MS,
        cpu_fraction=ran,
        healthy_cpu_fraction=0.91,
        onset=Onset(
            iteration=HEALTHY + 1,
            unix_ns=0,
            reported_iteration=HEALTHY + SLOW,
            before_ns=110 * MS,
            after_ns=510 * MS,
        ),
    )
    return RankSeen(rank=number, replica=0, process="Running", sent=sent, fresh=True)


def test_a_wait_is_quoted_as_soon_as_it_is_found() -> None:
    """Check a slowdown that is younger than most of the reported iterations."""
    ranks = [_rank(0, 0.2), _rank(1, 0.97), _rank(2, 0.2)]
    obs = Observation(now=100.0, generation=1, running=True, running_seconds=100.0, members=[], ranks=ranks)
    seen = taken_out(Look(obs, POLICY)).obs.ranks
    assert [rank.unseen_wait_ns for rank in seen] == [400 * MS, 0, 400 * MS]
    assert seen[0].sent.compute_ns == [100 * MS] * (HEALTHY + SLOW)
    assert seen[0].sent.wait_ns == [0] * HEALTHY + [400 * MS] * SLOW
    assert seen[1] == ranks[1]
