"""Waits outside known calls are taken out of the ranks' computation, and the newest ones are quoted."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from falcon_core.model import Cause
from falcon_core.recovery import Look, Policy, RecoveryState, machine
from falcon_core.recovery.diagnosis.unseen_waits import taken_out
from falcon_core.recovery.model.observation import MemberSeen, Observation, RankSeen
from falcon_core.stats.medians import Floats
from falcon_core.wire.reporting.messages import RECENT_ITERATIONS, Onset, RankSignals
from falcon_core.wire.reporting.samples import StackPlace, StackSamples

MS = 1_000_000
HEALTHY, SLOW = 12, 4  # reported iterations
POLICY = Policy(job="gpt2", strategies=[("Ignore", None)], world_size=3)
replace = msgspec.structs.replace


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


# -- a job whose ranks queue for a lock --------------------------------------------------------------------------------

LAYERS, HELD, SLEPT = 0.15, 0.01, 0.34  # s: computed in an iteration, behind the lock, and slept there since the onset
BEFORE, AFTER = 60, 110  # iterations before and since the onset
READING = 5.0  # s between two readings of CPU times
LOOKED = 2  # iterations between two looks
SAMPLED = ((0.0, 0), (10.0, 12), (45.0, 60))  # seconds since the onset, and the samples of each rank from then on


class _Queue:
    """Ranks that do one after the other what a lock guards, then wait for the last of them in a call that is known."""

    def __init__(self, ranks: int, seed: int, *, in_order: bool) -> None:
        self.ranks, self._in_order, self._rng = ranks, in_order, np.random.default_rng(seed)
        self._stood = np.zeros((3, ranks))  # s, since the onset: in the queue, behind the lock, in the known call
        self._iterations: list[float] = []  # s
        self._computed: list[Floats] = []  # by iteration, s: [ranks]
        self._taken = 0
        self._samples: list[StackSamples | None] = [None] * ranks
        for _ in range(BEFORE):
            self.iterate(HELD)
        self._onset, self._healthy_cpu = self.clock, self._ran / self.clock
        self._healthy_compute = np.median(self._computed, axis=0)
        self._readings = [(self.clock, self._ran)]
        self._stood[:] = 0

    @property
    def clock(self) -> float:
        return sum(self._iterations)

    @property
    def _ran(self) -> float:
        return len(self._iterations) * (HELD + LAYERS)

    def iterate(self, seconds: float) -> None:
        """Play an iteration in which each rank has the lock for so long."""
        held = seconds * np.exp(0.02 * self._rng.standard_normal(self.ranks))
        order = np.arange(self.ranks) if self._in_order else self._rng.permutation(self.ranks)
        queued = np.zeros(self.ranks)
        queued[order[1:]] = np.cumsum(held[order])[:-1]
        left = queued + held
        self._stood += [queued, held, left.max() - left]
        self._iterations.append(float(left.max()) + LAYERS + 0.005)
        self._computed.append(left + LAYERS)
        # The launcher reads CPU times seldom, and samples arrive together, long after the onset.
        if len(self._iterations) > BEFORE:
            self._count()

    def _count(self) -> None:
        if self.clock - self._readings[-1][0] > READING:
            self._readings.append((self.clock, self._ran))
        taken = max(count for after, count in SAMPLED if self.clock - self._onset >= after)
        if taken > self._taken:
            self._taken, self._samples = taken, [self._sampled(rank, taken) for rank in range(self.ranks)]

    def _sampled(self, rank: int, taken: int) -> StackSamples:
        """Draw samples of a rank's stack, of which its process has not answered a few."""
        answered = taken - int(self._rng.integers(0, 4))
        drawn = self._rng.multinomial(answered, self._stood[:, rank] / self._stood[:, rank].sum()).tolist()
        return StackSamples(
            taken=answered, places=[StackPlace([f"place {at}"], count) for at, count in enumerate(drawn) if count]
        )

    def observed(self) -> Observation:
        ranks = range(self.ranks)
        return Observation(
            now=self.clock,
            generation=1,
            running=True,
            running_seconds=100.0,
            members=[MemberSeen(replica=rank, pod_name=f"gpt2-{rank}", node=f"node-{rank}") for rank in ranks],
            ranks=[
                RankSeen(rank=rank, replica=rank, process="Running", sent=self._sent(rank), fresh=True)
                for rank in ranks
            ],
        )

    def _sent(self, rank: int) -> RankSignals:
        (begun, ran_before), (read, ran) = self._readings[0], self._readings[-1]
        iteration_ns = [round(1e9 * seconds) for seconds in self._iterations]
        healthy_ns = iteration_ns[BEFORE // 2]
        return RankSignals(
            rank=rank,
            tracking="Tracking",
            iterations=len(iteration_ns),
            iteration_ns=iteration_ns[-RECENT_ITERATIONS:],
            compute_ns=[round(1e9 * float(seconds[rank])) for seconds in self._computed[-RECENT_ITERATIONS:]],
            wait_ns=[0] * RECENT_ITERATIONS,
            healthy_iteration_ns=healthy_ns,
            healthy_compute_ns=round(1e9 * float(self._healthy_compute[rank])),
            cpu_fraction=(ran - ran_before) / (read - begun) if read > begun else self._healthy_cpu,
            healthy_cpu_fraction=self._healthy_cpu,
            samples=self._samples[rank],
            onset=Onset(
                iteration=BEFORE + 1,
                unix_ns=round(1e9 * self._onset),
                reported_iteration=BEFORE + SLOW,
                before_ns=healthy_ns,
                after_ns=iteration_ns[-1],
            ),
        )


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("ranks", [3, 8])
@pytest.mark.parametrize("seed", range(6))
def test_no_rank_is_named_where_all_sleep_behind_a_lock(seed: int, ranks: int, in_order: bool) -> None:
    """Check CPU times that are late, and samples that are late, few, and of different numbers at each rank."""
    job, state = _Queue(ranks, seed, in_order=in_order), RecoveryState()
    policy = replace(POLICY, world_size=ranks)
    for made in range(1, AFTER + 1):
        job.iterate(HELD + SLEPT)
        if made >= SLOW and made % LOOKED == 0:
            state = machine.step(state, Look(job.observed(), policy)).state
            assert not any(slow.culprit for slow in state.slowdowns), made
    change = state.levels.change
    assert change is not None
    assert change.outside is not None
    assert change.outside.cause == Cause.UNSEEN_WAIT
