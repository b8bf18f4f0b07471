"""What both codes under comparison take by the same names: the fields of their policies and observations."""

from __future__ import annotations

from typing import Any

from evaluation.real_jobs.outcome import REPLACEMENT_SECONDS, Facts, Pod, Seen

Fields = dict[str, Any]


def of_policy(facts: Facts) -> Fields:
    """Return the default policy for a job."""
    return {
        "job": "job",
        "strategies": [("Ignore", None), ("ReplaceNode", REPLACEMENT_SECONDS)],
        "stages": facts.layout.pipeline,
        "world_size": facts.layout.world,
        "layout": facts.layout,
    }


def of_moment(seen: Seen) -> Fields:
    """Return what an observation says of the moment and the generation."""
    return {
        "now": seen.now,
        "generation": seen.generation,
        "running": seen.running,
        "running_seconds": seen.now - seen.since if seen.running else 0.0,
    }


def of_members(seen: Seen) -> list[Fields]:
    """Return the members, whose pods all live."""
    return [
        {
            "replica": replica,
            "pod_name": name,
            "pod_uid": name,
            "node": f"node-{node}",
            "pod": "Present",
            "alive": True,
        }
        for replica, (name, node) in enumerate(zip(seen.names, seen.roles, strict=True))
    ]


def of_prepared(pod: Pod, now: float) -> Fields:
    """Return a pod that is being prepared."""
    return {
        "pod_name": pod.name,
        "claimed_node": "" if pod.node is None else f"node-{pod.node}",
        "ready": pod.node is not None and now >= pod.ready_at,
    }


def of_spares(seen: Seen) -> Fields:
    """Return the spares of the pool."""
    return {
        "pool": "spares",
        "available": seen.spares > 0,
        "message": "" if seen.spares else "the pool has no ready spare",
        "ready": seen.spares,
    }
