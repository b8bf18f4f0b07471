"""Apply the desired state to running ranks: pauses for measurements, and micro-batch shares."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from falcon_core.recovery import Observation, Policy, RecoveryState
from falcon_core.recovery.strategies import adjust_microbatches
from falcon_sim.cluster.machines import Machines
from falcon_sim.cluster.probes import Pods
from falcon_sim.job.scenario import Scenario
from falcon_sim.policies.steps import Step, shared_anew

replace = msgspec.structs.replace


class Desired:
    """The pods of a run, as far as they do what core's state asks for."""

    def __init__(self, scenario: Scenario, machines: Machines, policy: Policy) -> None:
        self._saves_on_demand = scenario.job.saves_on_demand
        self._machines, self._policy = machines, policy
        self._pods = Pods(machines, np.random.default_rng([scenario.seed, 3]))
        self._firsts = adjust_microbatches.replicas(policy)[:, 0, 0].tolist()  # a rank of each replica

    def seen(self, state: RecoveryState, obs: Observation) -> Observation:
        """Return the operator's observation, with the pods' answers."""
        obs = replace(obs, saves=self._saves_on_demand)
        return replace(obs, probes=self._pods.answers(state.probe, obs))

    def steps(self, state: RecoveryState, obs: Observation, counts: tuple[int, ...]) -> Iterator[Step]:
        """Yield the steps to take now. ``counts``: micro-batches of each replica."""
        conditions = self._machines.conditions(obs.now, counts)
        paused = self._pods.stand_still(state.probe, obs, conditions)
        if paused:
            yield Step(overhead_seconds=paused, text="all ranks stood still to be measured")
        sharing = state.sharing
        if sharing is not None and sharing.generation == obs.generation:
            wanted = tuple(sharing.shares[first] for first in self._firsts)
            if wanted != counts:
                prices = dict(self._policy.strategies)
                yield shared_anew(wanted, prices.get(adjust_microbatches.TYPE) or 0.0)
