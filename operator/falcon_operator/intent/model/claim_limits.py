"""Limit how many spares a job may still take from a pool: reports of tenants must not empty it.

A job that reports its nodes as slow or dead is believed for itself, so it may ask for one spare after the other, and a
tenant may delete a job and make it again. Therefore the pool limits what a job and a namespace hold, and what a
namespace claims within an hour. The claims of that hour stand in the pool's status, and a claim is written under the
pool's resourceVersion: no limit is passed by asking twice at the same time, nor by a new job or a new leader.
"""

from __future__ import annotations

import msgspec

from falcon_core.recovery import ClaimLimit
from falcon_operator.api.warmpool import NamespaceClaims, WarmPool
from falcon_operator.base.time_format import clock_time, timestamp, unix_seconds

HOUR_SECONDS = 3600.0
MOST_REMEMBERED = 4096  # claims of all namespaces; the pool's status has to stay small


class Allowance(msgspec.Struct, frozen=True):
    """How many spares a job may claim now; where there are none, which limit says so, and what can be done."""

    spares: int
    limit: ClaimLimit = ""
    message: str = ""


def allowance(pool: WarmPool, job_prefix: str, now: float) -> Allowance:
    """Return how many spares the job may claim now. ``job_prefix``: ``namespace/name/uid/``, as of all its claims."""
    limits, name = pool.spec.claims, pool.metadata.name
    namespace = job_prefix.partition("/")[0]
    recent = _recent(pool, namespace, now)
    held = [spare.claimed_by for spare in pool.status.spares if spare.state == "Claimed"]
    by_job = sum(key.startswith(job_prefix) for key in held)
    by_namespace = sum(key.startswith(f"{namespace}/") for key in held)
    # The tightest of the three limits holds.
    left = min(limits.per_job - by_job, limits.per_namespace - by_namespace, limits.per_hour - len(recent))
    if left > 0:
        return Allowance(left)
    limit: ClaimLimit
    # Name the limit that the job's owner can do something about first.
    if by_job >= limits.per_job:
        limit, why = "PerJob", f"spec.claims.perJob: the job holds {by_job}; raise it"
    elif by_namespace >= limits.per_namespace:
        limit = "PerNamespace"
        why = f"spec.claims.perNamespace: the jobs of {namespace} hold {by_namespace}; end a job, or raise it"
    else:
        free_at = clock_time(recent[len(recent) - limits.per_hour] + HOUR_SECONDS)
        limit = "PerHour"
        why = (
            f"spec.claims.perHour: the jobs of {namespace} have claimed {len(recent)} within an hour; wait until"
            f" {free_at}, or raise it"
        )
    return Allowance(0, limit, f"WarmPool {name} gives the job no further spare by its {why}")


def recorded(pool: WarmPool, namespace: str, now: float) -> list[NamespaceClaims]:
    """Return the claims of the last hour with another one of ``namespace``."""
    kept = {entry.namespace: _recent(pool, entry.namespace, now) for entry in pool.status.recent_claims}
    kept[namespace] = [*kept.get(namespace, []), now]
    # The status has a bounded size, so the oldest claim of any namespace is forgotten first.
    while sum(map(len, kept.values())) > MOST_REMEMBERED:
        oldest = min((times[0], name) for name, times in kept.items() if times)[1]
        kept[oldest] = kept[oldest][1:]
    return [
        NamespaceClaims(namespace=name, at=[timestamp(at) for at in times])
        for name, times in sorted(kept.items())
        if times
    ]


def _recent(pool: WarmPool, namespace: str, now: float) -> list[float]:
    """Return when the namespace's claims of the last hour were made, unix seconds, oldest first.

    A time in the future comes from a leader whose clock was ahead. It counts as now, so that it ends within an hour.
    """
    entries = (entry for entry in pool.status.recent_claims if entry.namespace == namespace)
    times = [min(now, unix_seconds(at)) for entry in entries for at in entry.at]
    return sorted(at for at in times if now - at < HOUR_SECONDS)
