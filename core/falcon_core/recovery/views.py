"""Answer what the operator and the simulator ask of a state: what is due, which ranks wait, what a repair costs.

The packages behind these names are internal to the recovery; a contract in pyproject.toml keeps other code out of them.
"""

from __future__ import annotations

from falcon_core.recovery.cost import prices
from falcon_core.recovery.cost.prices import TAKE_THE_ROLE, next_step
from falcon_core.recovery.diagnosis import communicator_progress
from falcon_core.recovery.diagnosis.culprit_timing import named_for_ns
from falcon_core.recovery.failslow import link_swap
from falcon_core.recovery.failstop import hangs, setup_retries, standby_pods
from falcon_core.recovery.failstop.hangs import doing as hang_activity
from falcon_core.recovery.failstop.hangs import due_at as hang_due_at
from falcon_core.recovery.failstop.late_starts import limit_seconds as start_limit_seconds
from falcon_core.recovery.failstop.liveness import Liveness, assess_liveness
from falcon_core.recovery.failstop.standby_pods import Seen as StandbyPodSeen
from falcon_core.recovery.history import left_nodes
from falcon_core.recovery.history.node_fault import suffices as evidence_suffices
from falcon_core.recovery.model import membership
from falcon_core.recovery.model.membership import begin as first_membership
from falcon_core.recovery.model.slowdown import newest as newest_application
from falcon_core.recovery.probe import probe_controller, probe_targets

__all__ = [
    "TAKE_THE_ROLE",
    "Liveness",
    "StandbyPodSeen",
    "assess_liveness",
    "communicator_progress",
    "evidence_suffices",
    "first_membership",
    "hang_activity",
    "hang_due_at",
    "hangs",
    "left_nodes",
    "link_swap",
    "membership",
    "named_for_ns",
    "newest_application",
    "next_step",
    "prices",
    "probe_controller",
    "probe_targets",
    "setup_retries",
    "standby_pods",
    "start_limit_seconds",
]
