"""``spec.checkpoint`` of a TrainingJob."""

from __future__ import annotations

import msgspec

from falcon_operator.directory_spec import DirectorySpec


class CheckpointSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The job's checkpoints."""

    memory: str | None = None  # a quantity, of each pod: two buffers for each of its ranks
    copies: int = 0  # of each checkpoint in the memory of another pod: 0 or 1
    copy_bandwidth: str | None = None  # a quantity of bytes that a pod sends a second at most, for copies
    interface: str | None = None  # of the pods, over which copies are sent; None: the pod's own
    failure_domain: str = "topology.kubernetes.io/zone"  # label of nodes that fail together
    directory: DirectorySpec | None = None  # a folder in the memory of each pod
    interval_seconds: int | None = None  # how often the training code writes a checkpoint; only for prices
