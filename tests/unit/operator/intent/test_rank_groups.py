"""What the operator takes from the launchers' reports of a group of ranks: each pod's word for its own ranks alone."""

from __future__ import annotations

import pytest

from falcon_core.wire.launcher.printed import Printed, RankOutput
from falcon_core.wire.reporting.groups import GroupChange, GroupReport, LostRank, RankEnd, RankGroup
from falcon_core.wire.reporting.messages import Summary
from falcon_operator.api.elastic import GroupChangeStatus, GroupStatus, LostRankStatus
from falcon_operator.base.ports import JobReports, Received
from falcon_operator.intent.observation.rank_groups import GroupSeen, Loss, group_seen
from tests.unit.operator.manifests.test_copies import membership, replace, snapshot

NODES = ["a", "b"]  # of two ranks each
END_MS = 50_000
NUMBERED = ((5, 4), (5, 9), (4, 4), (7, 4))  # of changes, each with the ranks before it
GROUP = RankGroup(2, 4, 3, END_MS, changes=[GroupChange(2, END_MS, 4, 3, [LostRank(2, 77, "Gone")])])


def seen(
    *reports: GroupReport | None,
    printed: list[Printed] | None = None,
    generation: int = 3,
    phase: str = "Run",
    shown: GroupStatus | None = None,
) -> GroupSeen | None:
    """Return what is known when each pod reports this; the second pod has printed something. ``shown``: so far."""
    summaries = {
        f"uid-{place}": Received(
            summary=Summary(
                pod_uid=f"uid-{place}",
                sequence=1,
                unix_ns=1,
                generation=generation,
                groups=report,
                output=[RankOutput(0, printed)] if printed and place == 1 else [],
            ),
            at_seconds=9.0,
        )
        for place, report in enumerate(reports)
    }
    snap = replace(snapshot(NODES), reports=JobReports(summaries=summaries))
    snap = replace(snap, job=replace(snap.job, status=replace(snap.job.status, group=shown)))
    return group_seen(snap, replace(membership(NODES), phase=phase))


def only_loss(found: GroupSeen | None) -> Loss:
    assert found is not None
    (loss,) = found.losses[2]
    assert (loss.rank, loss.member.replica) == (2, 1)
    return loss


def ended(code: int, process: int = 77, rank: int = 2) -> GroupReport:
    return GroupReport(None, [RankEnd(rank, process, code, END_MS)])


def test_the_first_pods_group_and_the_own_pods_end_are_put_together() -> None:
    loss = only_loss(seen(GroupReport(GROUP), ended(-11)))
    assert loss.end is not None
    assert loss.end.text == "crashed with SIGSEGV"


@pytest.mark.parametrize("report", [None, ended(1, process=78), ended(1, rank=3), ended(0)])
def test_another_process_of_the_rank_says_nothing_of_the_lost_one(report: GroupReport | None) -> None:
    assert only_loss(seen(GroupReport(GROUP), report)).end is None


def test_another_pod_says_nothing_of_the_rank() -> None:
    assert only_loss(seen(GroupReport(GROUP, [RankEnd(2, 77, 1, END_MS)]), None)).end is None


def test_without_the_first_pods_word_or_of_another_generation_there_is_no_group() -> None:
    assert seen(None, GroupReport(GROUP)) is None
    assert seen(GroupReport(), GroupReport(GROUP)) is None
    assert seen(GroupReport(GROUP), None, generation=2) is None
    assert seen(GroupReport(GROUP), None, phase="Stop") is None


def test_a_rank_that_the_job_does_not_have_is_left_out() -> None:
    wild = replace(GROUP, changes=[GroupChange(2, END_MS, 4, 3, [LostRank(4, 1), LostRank((1 << 31) - 1, 1)])])
    found = seen(GroupReport(wild), None)
    assert found is not None
    assert found.losses == {}


def test_of_changes_with_one_number_the_first_counts_and_none_is_later_than_the_group() -> None:
    first, again, old, late = (GroupChange(number, END_MS, before, 3, [LostRank(2, 77)]) for number, before in NUMBERED)
    found = seen(GroupReport(replace(GROUP, number=6, changes=[first, again, old, late])), None)
    assert found is not None
    assert found.group.changes == [first]
    assert [loss.rank for loss in found.losses[5]] == [2]


def printed(text: str, ms: int, *, raised: bool = True) -> Printed:
    return Printed((END_MS + ms) * 1_000_000, text, "Assertion", raised)


def test_the_newest_exception_that_the_pod_printed_when_the_rank_ended_is_its_own() -> None:
    lines = [printed("first", -2000), printed("second", -100), printed("a line", 0, raised=False), printed("x", 9000)]
    loss = only_loss(seen(GroupReport(GROUP), ended(1), printed=lines))
    assert loss.printed == lines[1]
    assert only_loss(seen(GroupReport(GROUP), ended(-9), printed=lines)).printed is None, "a signal raises nothing"
    assert only_loss(seen(GroupReport(GROUP), ended(1), printed=lines[3:])).printed is None
    assert only_loss(seen(GroupReport(GROUP), ended(1), printed=[printed("old", -11_000)])).printed is None


def test_a_pod_that_is_made_again_says_nothing_of_how_the_earlier_one_was_lost() -> None:
    lost = LostRankStatus(rank=2, pod="earlier", node="z", at="then", why="its node was lost")
    change = GroupChangeStatus(number=2, at="then", before=4, ranks=3, lost=[2], what="")
    shown = GroupStatus(generation=3, number=2, ranks=3, wanted=4, since="", changes=[change], lost=[lost])
    loss = only_loss(seen(GroupReport(GROUP), ended(1), shown=shown))
    assert (loss.member.pod_name, loss.member.node, loss.shown, loss.end) == ("earlier", "z", lost, None)
    other = replace(shown, generation=2)
    assert only_loss(seen(GroupReport(GROUP), ended(1), shown=other)).end is not None
