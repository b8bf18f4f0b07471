"""Hold the facts of a type of strategy, from which the API's words, the simulator's and the status derive."""

from __future__ import annotations

import msgspec


class StrategyType(msgspec.Struct, frozen=True, kw_only=True):
    """A type that ``spec.mitigation.strategies`` may name.

    The phrases stand inside sentences that users read. For example, "pods exchange their roles when the loss reaches
    26 s", or "mode Observe: roles would have been exchanged; nothing was done".
    """

    name: str  # in the spec
    explanation: str  # of the type, in whole sentences, for ``kubectl explain``
    default_seconds: float  # price until it is configured or measured
    by_default: bool = False  # a spec that names no strategy has this one
    needs_node_evidence: bool = False  # against a rank: it takes the node away from the rank's work
    takes_spare: bool = False
    restarts: bool = False  # all ranks; the next generation shows whether it helped
    least_pods: int = 1  # with fewer pods it does nothing
    does_nothing: str = ""  # why: a phrase that follows the type's name
    act: str = ""  # "pods exchange their roles"
    would_act: str = ""  # "pods would exchange their roles"
    would_have_acted: str = ""  # "roles would have been exchanged"
    acted: str = ""  # "all ranks restarted in their pods"; empty where the status has the figures of what was done
    judged: str = ""  # while its effect is not known yet: "pods have exchanged their roles"
    machine_leaves: str = ""  # the effect on the culprit's machine: "its pod takes another role"
    event: str = "Mitigating"  # reason of the Event at the moment of the action
