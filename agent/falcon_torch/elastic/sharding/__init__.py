"""Let a job whose model is sharded by ``fully_shard`` (FSDP2) go on in living processes when a rank is lost or joins.

``group`` is what a script uses. ``versions`` decides which state a new group goes on with, ``shards`` keeps and moves
it, ``training`` is the model with its optimizer, and ``collectives`` makes the calls of FSDP's passes.
"""

from __future__ import annotations

from falcon_torch.elastic.sharding.group import ShardedGroup

__all__ = ["ShardedGroup"]
