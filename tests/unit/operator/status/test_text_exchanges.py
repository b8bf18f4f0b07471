"""What ``Next`` says of an exchange of roles: when it is due, and why it is due earlier than at its price."""

from __future__ import annotations

from falcon_core.planning.ski_rental import Candidate
from falcon_core.recovery.model.treatments import Outlook
from falcon_operator.status.text.exchanges import link_next
from tests.unit.recovery.seen import replace
from tests.unit.recovery.strategies.test_swap_for_link import POLICY, incident

EXCHANGE = Candidate(name="SwapNodes", overhead_seconds=13.0, removed_share=0.5)
SLOW = incident(outlook=Outlook(at=0.0, removed_share=0.5))


def test_an_exchange_is_due_when_what_it_removes_has_paid_for_it() -> None:
    assert link_next(SLOW, POLICY, EXCHANGE) == (
        "pods exchange their roles when the loss reaches 26 s: an exchange costs 13 s, and removes 50 % of the loss"
    )


def test_it_says_why_it_is_due_earlier() -> None:
    early = replace(EXCHANGE, due_share=0.5, rest_seconds=1500.0, seen=12)
    assert link_next(SLOW, POLICY, early) == (
        "pods exchange their roles when the loss reaches 13 s, 50 % of its cost: an exchange costs 13 s,"
        " and removes 50 % of the loss; that is earlier than usual, because 12 slowdowns of this cause and depth were"
        " seen in this job, and they suggest that this one will last about 25 min more"
    )
