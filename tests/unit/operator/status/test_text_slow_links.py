"""What a diagnosis says of a slow link: beside its own healthy transfers, beside its kind, and by measuring alone."""

from __future__ import annotations

import pytest

from falcon_core.recovery.model.slowdown import SlowLink
from falcon_core.wire.ring import Op
from falcon_operator.status.text.slow_links import describe_link
from tests.unit.recovery.seen import MS, replace
from tests.unit.recovery.strategies.test_swap_for_link import LINK, POLICY, incident

ALL_REDUCE = replace(LINK, op=int(Op.ALL_REDUCE), compute_growth=1.02)


@pytest.mark.parametrize(
    ("link", "why", "evidence"),
    [
        (
            ALL_REDUCE,
            "a slow link: every member's all-reduce takes longer, in data group of rank 0, and no rank computes"
            " slower or lacks CPU",
            "transfers last 0.20 s longer than in a healthy iteration, in sum and at all members; iteration 250ms"
            " before, 450ms now; the largest change of a rank's computation: +2 %",
        ),
        (
            replace(ALL_REDUCE, siblings=1),
            "a slow link: all-reduce in data group of rank 0 takes longer than in the other group of its kind",
            "in each iteration since the first, transfers last at least 0.20 s longer than in the other group;"
            " iteration 250ms without that, 450ms now",
        ),
        (
            replace(ALL_REDUCE, siblings=7),
            "a slow link: all-reduce in data group of rank 0 takes longer than in the 7 other groups of its kind",
            "in each iteration since the first, transfers last at least 0.20 s longer than in the 7 other groups;"
            " iteration 250ms without that, 450ms now",
        ),
        (
            replace(LINK, comm=""),
            "a slow link, found by measuring all links: the ranks' computation alone would still fit into a healthy"
            " iteration",
            "iteration 250ms before, 450ms now",
        ),
    ],
    ids=["grown", "a sibling", "siblings", "measured"],
)
def test_what_a_slow_link_is_held_against(link: SlowLink, why: str, evidence: str) -> None:
    slow = incident(link=link, healthy_ns=250 * MS, slow_ns=450 * MS)
    note = describe_link(slow, link, POLICY, None)
    assert (note.why, note.evidence, note.cause) == (why, evidence, "SlowLink")
