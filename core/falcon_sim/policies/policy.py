"""Build core's recovery policy of a scenario: the part of a job's spec that decisions need."""

from __future__ import annotations

from falcon_core.recovery import Policy
from falcon_core.topology.parallelism import Parallelism
from falcon_sim.job.scenario import Scenario
from falcon_sim.policies import rungs


def policy_of(scenario: Scenario) -> Policy:
    """Return the policy. Under FALCON's published one, its own rungs decide on S2, S3 and pauses (``published``)."""
    watch, mitigation, degrees = scenario.detection, scenario.mitigation, scenario.job.parallelism
    strategies = mitigation.strategies if mitigation.falcon == "All" else ()
    pause_budget = mitigation.pause_budget
    if mitigation.published is not None:
        strategies = tuple(strategy for strategy in strategies if strategy.type not in (rungs.S2, rungs.S3))
        pause_budget = 0.0
    return Policy(
        job=scenario.job.name,
        strategies=[(strategy.type, strategy.overhead_seconds) for strategy in strategies],
        checkpoint_interval_seconds=mitigation.checkpoint_interval_seconds,
        verify=watch.verify_percent / 100,
        median_factor=watch.median_percent / 100,
        consecutive=watch.consecutive_iterations,
        restarts=mitigation.restarts,
        window_seconds=mitigation.window_seconds,
        pause_budget=pause_budget,
        stages=degrees.pipeline,
        world_size=degrees.world,
        layout=Parallelism(tensor=degrees.tensor, expert=degrees.expert, data=degrees.data, pipeline=degrees.pipeline),
    )
