"""Replace a slow node: prepare a pod on another one while training goes on, then let it take over (strategy S4).

Further nodes whose loss has paid for a spare share the restart (``incidents``). ``Located`` → (the pod is ordered) →
``Mitigating`` → (the pod takes over) → ``Checking``.
"""

from __future__ import annotations

from falcon_core.planning.ski_rental import Candidate
from falcon_core.recovery.cost import prices
from falcon_core.recovery.failslow import incidents, replacement_check
from falcon_core.recovery.history import flapping
from falcon_core.recovery.mitigation.strategy import Attempt, Strategy
from falcon_core.recovery.model.actions import Abandon, Prepare, Switch
from falcon_core.recovery.model.observation import Look
from falcon_core.recovery.model.slowdown import SlowIncident, checking, mitigating
from falcon_core.recovery.model.state import RecoveryState, with_leader
from falcon_core.recovery.model.step import Step
from falcon_core.recovery.strategies import replace_node


class Replacement(Strategy):
    """S4 against a slow rank."""

    facts = replace_node.FACTS
    against = ("Rank",)

    def candidate(self, state: RecoveryState, slow: SlowIncident, look: Look) -> Candidate | None:
        return prices.replacement(state, slow, look)

    def blocked_reason(self, state: RecoveryState, slow: SlowIncident, look: Look) -> str:
        wanted = look.policy.enforce and incidents.may_be_replaced(slow, look)
        return replace_node.hindrance(look.obs.spares) if wanted else ""

    def apply(self, state: RecoveryState, slow: SlowIncident, look: Look) -> Attempt:
        if not look.policy.enforce:
            return Attempt(state, slow, [])
        if not incidents.may_be_replaced(slow, look):
            return Attempt(state, slow)  # named, but not slow at this moment
        culprit = incidents.culprit(slow)
        prepare = Prepare(culprit.replica, replace_node.reason(culprit), slow.id)
        return Attempt(state, mitigating(slow), [prepare])

    def check(self, state: RecoveryState, slow: SlowIncident, look: Look) -> Step:
        return replacement_check.step(state, slow, look)


def follow(state: RecoveryState, slow: SlowIncident, look: Look) -> Step:
    """Wait until the prepared pods can take over; training goes on meanwhile."""
    replica = incidents.culprit(slow).replica
    prepared = look.obs.prepared.get(replica)
    if prepared is None:  # the ladder for fail-stop took it, or the intent was withdrawn
        return Step(with_leader(state, checking(slow, look.obs.now)))
    if not look.obs.running and not look.obs.members[replica].launcher.acknowledged:
        return Step(state)  # a failure is being met: first see whether the culprit's pod still lives
    failure = "" if prepared.ready else replace_node.failed(prepared)
    if failure:
        state = with_leader(state, incidents.given_back(slow, failure, look.obs.now))
        # Without the first node's pod there is no restart that the other pods could share.
        return Step(state, [Abandon(replica)]).then(incidents.give_back(state))
    taken = incidents.without_failed(state, look.obs)
    training = look.obs.running and state.stop is None
    joined = Step(taken.state)
    if training and incidents.may_wait(slow):
        joined = incidents.join(taken.state, look)
        taken = taken.then(joined)
    if not prepared.ready or not flapping.may_be_left(slow):  # it may have recovered for good: see ``flapping``
        return taken
    # A shared restart is cheaper than a second one: wait for the pods of further nodes while that pays.
    if training and (joined.commands or incidents.awaited(taken.state, look.obs)):
        return taken
    state = with_leader(taken.state, incidents.switched(slow, prepared, look.obs.now))
    return taken.then(Step(state, [Switch(replica)])).then(incidents.switch(state, look.obs))
