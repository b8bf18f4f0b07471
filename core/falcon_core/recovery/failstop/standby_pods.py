"""Keep pods without a replica ready, so that a lost node's replica gets its next pod at once.

A standby pod holds a claimed spare (or any free node, where the job names no pool), runs its agent and launcher, and
waits for a plan. The recovery's commands take a ready standby pod before they name a new pod
(``model.membership.apply_actions``). Then another standby pod replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Final

import msgspec

from falcon_core.recovery.model.membership import Membership, Names, StandbyPod

AFTER_SECONDS: Final = 20.0  # of a generation: a job that does not come up needs its nodes more
AGAIN_SECONDS: Final = 60.0  # that a standby pod which is over keeps its place: its successor may end likewise
replace = msgspec.structs.replace


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of a standby pod."""

    pod_uid: str = ""  # "": there is no pod yet
    node: str = ""  # claimed for it, or the pod's
    ready: bool = False  # its launcher waits for a plan
    over: bool = False  # it ended, is being deleted, or lost its node


def look(membership: Membership, seen: Mapping[str, Seen], names: Names, *, wanted: int, now: float) -> Membership:
    """Return the membership with as many standby pods as are wanted, as far as they can be named now.

    Args:
        membership: of the job.
        seen: by the pod's name, of every standby pod.
        names: the caller's names for pods and claims.
        wanted: number of standby pods.
        now: unix seconds.
    """
    kept = [
        _updated(each, seen[each.pod_name])
        for each in membership.standbys
        if not _is_over(each, seen[each.pod_name], membership) or now - each.at < AGAIN_SECONDS
    ][:wanted]
    membership = replace(membership, standbys=kept)
    if membership.phase == "Run" and now - membership.since >= AFTER_SECONDS:
        for _ in range(wanted - len(kept)):
            membership = _with_one_more(membership, names, now)
    return membership


def _is_over(standby: StandbyPod, seen: Seen, membership: Membership) -> bool:
    return seen.over or _is_lost(standby, seen) or seen.node in membership.excluded_nodes


def _is_lost(standby: StandbyPod, seen: Seen) -> bool:
    return bool(standby.pod_uid) and seen.pod_uid != standby.pod_uid


def _updated(standby: StandbyPod, seen: Seen) -> StandbyPod:
    if _is_lost(standby, seen):
        return replace(standby, ready=False)
    return replace(standby, pod_uid=seen.pod_uid, node=seen.node or standby.node, ready=seen.ready and not seen.over)


def _with_one_more(membership: Membership, names: Names, now: float) -> Membership:
    used = {member.number for member in membership.members} | {each.number for each in membership.standbys}
    used |= {each.number for each in membership.joining}
    used |= {move.pod_number for move in membership.replacements if move.pod_number is not None}
    # Numbers of replicas come first, so that a standby's host name never equals a member's.
    number = next(number for number in count(len(membership.members)) if number not in used)
    made = membership.pods_made + 1
    standby = StandbyPod(
        number=number,
        pod_name=names.pod(number, made),
        pool=names.pool,
        claim_key=names.claim(made) if names.pool else "",
        at=now,
    )
    return replace(membership, pods_made=made, standbys=[*membership.standbys, standby])
