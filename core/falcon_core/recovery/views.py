"""Answer what the operator and the simulator ask of a state: what is due, which ranks wait, what a repair costs.

The packages behind these names are internal to the recovery; a contract in pyproject.toml keeps other code out of them.
"""

from __future__ import annotations

from falcon_core.recovery import elastic
from falcon_core.recovery.cost import prices
from falcon_core.recovery.diagnosis import communicator_progress
from falcon_core.recovery.diagnosis.culprit_timing import named_for_ns
from falcon_core.recovery.failstop import hangs, not_finite, setup_retries, standby_pods
from falcon_core.recovery.failstop.hangs import doing as hang_activity
from falcon_core.recovery.failstop.hangs import due_at as hang_due_at
from falcon_core.recovery.failstop.late_starts import limit_seconds as start_limit_seconds
from falcon_core.recovery.failstop.liveness import Liveness, assess_liveness
from falcon_core.recovery.failstop.standby_pods import Seen as StandbyPodSeen
from falcon_core.recovery.history import left_nodes
from falcon_core.recovery.history.node_fault import suffices as evidence_suffices
from falcon_core.recovery.mitigation.strategy_ladder import checked_strategy, next_step
from falcon_core.recovery.mitigation.strategy_table import STRATEGY_TYPES, StrategyName, strategy_type
from falcon_core.recovery.model import membership
from falcon_core.recovery.model.membership import begin as first_membership
from falcon_core.recovery.model.slowdown import detected
from falcon_core.recovery.model.slowdown import newest as newest_application
from falcon_core.recovery.model.state import with_further, with_leader
from falcon_core.recovery.probe import probe_controller, probe_targets
from falcon_core.recovery.repairs.repair_table import REPAIRS, STEP_WORDS, repair_of

__all__ = [
    "REPAIRS",
    "STEP_WORDS",
    "STRATEGY_TYPES",
    "Liveness",
    "StandbyPodSeen",
    "StrategyName",
    "assess_liveness",
    "checked_strategy",
    "communicator_progress",
    "detected",
    "elastic",
    "evidence_suffices",
    "first_membership",
    "hang_activity",
    "hang_due_at",
    "hangs",
    "left_nodes",
    "membership",
    "named_for_ns",
    "newest_application",
    "next_step",
    "not_finite",
    "prices",
    "probe_controller",
    "probe_targets",
    "repair_of",
    "setup_retries",
    "standby_pods",
    "start_limit_seconds",
    "strategy_type",
    "with_further",
    "with_leader",
]
