"""Observations for the recovery's tests: three members of one rank each, all well unless told otherwise."""

from __future__ import annotations

from typing import Any

import msgspec

from falcon_core.recovery.observation import MemberSeen, Observation, Policy, RankSeen
from falcon_core.wire.messages import Onset

NOW = 1_000_000.0
MS = 1_000_000
POLICY = Policy(job="gpt2", strategies=[("Ignore", None), ("ReplaceNode", 13.0)], world_size=3)
replace = msgspec.structs.replace

# Rank 2 is slow, and the others wait for it.
ONSET = Onset(iteration=90, unix_ns=int((NOW - 6) * 1e9), reported_iteration=95, before_ns=250 * MS, after_ns=650 * MS)
FAST = {"iteration_ns": [650 * MS] * 16, "wait_ns": [405 * MS] * 16, "onset": ONSET}
SLOW = {**FAST, "compute_ns": [600 * MS] * 16, "wait_ns": [5 * MS] * 16}
STRAGGLER: dict[int, dict[str, Any]] = {0: FAST, 1: FAST, 2: SLOW}


def member(replica: int, **fields: Any) -> MemberSeen:
    base = MemberSeen(
        replica=replica,
        pod_name=f"gpt2-{replica}",
        pod_uid=f"uid-{replica}",
        node=f"node-{replica}",
        pod="Present",
        alive=True,
        acknowledged=True,
    )
    return replace(base, **fields)


def rank(number: int, **fields: Any) -> RankSeen:
    base = RankSeen(
        rank=number,
        replica=number,
        process="Running",
        tracked=True,
        fresh=True,
        iterations=100,
        iteration_ns=[250 * MS] * 16,
        compute_ns=[200 * MS] * 16,
        wait_ns=[5 * MS] * 16,
        healthy_iteration_ns=250 * MS,
        healthy_compute_ns=200 * MS,
    )
    return replace(base, **fields)


def seen(
    members: dict[int, dict[str, Any]] | None = None, ranks: dict[int, dict[str, Any]] | None = None, **fields: Any
) -> Observation:
    """``members`` and ``ranks``: what is different, by number."""
    base = Observation(
        now=NOW,
        generation=1,
        running=True,
        running_seconds=100.0,
        members=[member(number, **(members or {}).get(number, {})) for number in range(3)],
        ranks=[rank(number, **(ranks or {}).get(number, {})) for number in range(3)],
    )
    return replace(base, **fields)


def ended(*, signal: int | None = None, exit_code: int | None = None, at: float = NOW - 0.2) -> dict[str, Any]:
    return {"process": "Ended", "signal": signal, "exit_code": exit_code, "ended_at": at}
