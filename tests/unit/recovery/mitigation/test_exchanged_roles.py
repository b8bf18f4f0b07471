"""Pods that exchange their roles: what stays with the pod, and what with the role."""

from __future__ import annotations

from falcon_core.recovery.model.actions import Recreate, Swap
from falcon_core.recovery.model.membership import Member, Membership, Replacement, apply_actions
from tests.unit.recovery.seen import NOW, replace


class Names:
    pool = ""

    def pod(self, replica: int, number: int) -> str:
        return f"gpt2-{replica}-{number}"

    def claim(self, number: int) -> str:
        return f"claim-{number}"


def pods() -> Membership:
    members = [
        Member(replica=n, pod_name=f"gpt2-{n}-{n}", pod_uid=f"uid-{n}", node=f"node-{n}", first_rank=2 * n)
        for n in range(3)
    ]
    return Membership(generation=4, phase="Run", members=members, pods_made=3)


def test_roles_are_exchanged_and_names_stay_with_the_pods() -> None:
    after = apply_actions(pods(), [Swap((2, 0, 1))], Names(), NOW)
    assert [(each.replica, each.first_rank) for each in after.members] == [(0, 0), (1, 2), (2, 4)]
    assert [each.pod_uid for each in after.members] == ["uid-2", "uid-0", "uid-1"]
    assert [each.number for each in after.members] == [2, 0, 1]
    assert (after.generation, after.phase, after.pods_made) == (5, "Stop", 3)
    back = apply_actions(replace(after, phase="Run"), [Swap((1, 2, 0))], Names(), NOW)
    assert back.members == pods().members, "a role that is a pod's own is no longer an exchanged one"


def test_a_new_pod_gets_the_number_of_the_pod_whose_place_it_takes() -> None:
    after = apply_actions(pods(), [Swap((1, 0, 2))], Names(), NOW)
    after = apply_actions(after, [Recreate(0, stay=False)], Names(), NOW)
    assert (after.members[0].pod_name, after.members[0].number, after.members[0].first_rank) == ("gpt2-1-4", 1, 0)
    assert len({each.number for each in after.members}) == 3


def test_the_end_of_an_earlier_move_follows_its_pod() -> None:
    move = Replacement(
        replica=2,
        pod_name="gpt2-2-2",
        old_pod_name="gpt2-2-0",
        old_pod_uid="old",
        old_node="node-x",
        prepared=False,
        at=NOW,
    )
    after = apply_actions(replace(pods(), replacements=[move]), [Swap((0, 2, 1))], Names(), NOW)
    assert [each.replica for each in after.replacements] == [1]
