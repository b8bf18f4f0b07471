"""Find who holds a spare, and what its test measured."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from falcon_operator.api.warmpool import SpareStatus, WarmPool, WarmPoolStatus
from falcon_operator.base.effects import ChangeClaims
from falcon_operator.base.time_format import timestamp
from falcon_operator.intent.model.claim_limits import allowance, recorded
from falcon_operator.pool.history import gflops
from falcon_operator.pool.summary import summed_up


def changed(pool: WarmPool, wanted: ChangeClaims, namespace: str, *, now: float) -> WarmPoolStatus:
    """Return the pool's status after the job's claims and releases: as many claims as there are spares for them."""
    for key in wanted.release:
        pool = msgspec.structs.replace(pool, status=release(pool, key, now=now))
    for key in wanted.take:
        status = claim(pool, key, namespace, avoid=wanted.avoid, now=now)
        if status is None:
            break  # there is no spare for the others either
        pool = msgspec.structs.replace(pool, status=status)
    return pool.status


def claim(
    pool: WarmPool, claim_key: str, namespace: str, *, avoid: Collection[str] = (), now: float
) -> WarmPoolStatus | None:
    """Return the pool's status with a ready spare claimed by ``claim_key`` (``namespace/name/uid/…``).

    The fastest ready spare is taken. The status is unchanged where the key holds a spare already. It is None where no
    spare is ready, all ready spares stand in ``avoid``, the namespace may not take from this pool, or a limit of
    ``spec.claims`` is reached.
    """
    # A claim may be repeated after a crash: the same key gets no second spare.
    if held(pool, claim_key) is not None:
        return pool.status
    allowed = pool.spec.allowed_namespaces
    if allowed and namespace not in allowed:
        return None
    ready = [spare for spare in pool.status.spares if spare.state == "Ready" and spare.node not in avoid]
    if not ready or not allowance(pool, job_prefix(claim_key), now).spares:
        return None
    # The node's name decides between equal scores, so that two looks choose the same spare.
    chosen = max(ready, key=lambda spare: (gflops(spare) or 0.0, spare.node))
    taken = msgspec.structs.replace(chosen, state="Claimed", claimed_by=claim_key, message="", since=timestamp(now))
    status = summed_up(pool, with_spare(pool.status.spares, taken), now)
    return msgspec.structs.replace(status, recent_claims=recorded(pool, namespace, now))


def job_prefix(claim_key: str) -> str:
    """Return what all claims of the key's job begin with: ``namespace/name/uid/``."""
    return claim_key.rpartition("/")[0] + "/"


def release(pool: WarmPool, claim_key: str, *, now: float) -> WarmPoolStatus:
    """Return the pool's status without the claim: its spare is tested again. Unchanged where the key holds no spare."""
    spare = held(pool, claim_key)
    if spare is None:
        return pool.status
    return summed_up(pool, with_spare(pool.status.spares, begin_test(spare, now)), now)


def held(pool: WarmPool, claim_key: str) -> SpareStatus | None:
    """Return the spare that ``claim_key`` holds; None if it holds none."""
    claimed = (spare for spare in pool.status.spares if spare.state == "Claimed")
    return next((spare for spare in claimed if spare.claimed_by == claim_key), None)


def begin_test(spare: SpareStatus, now: float) -> SpareStatus:
    """Return the spare at the beginning of a test."""
    return SpareStatus(node=spare.node, state="Testing", since=timestamp(now))


def with_spare(spares: Sequence[SpareStatus], changed: SpareStatus) -> list[SpareStatus]:
    """Return the spares, in which ``changed`` replaces the spare of the same node."""
    return [changed if spare.node == changed.node else spare for spare in spares]
