"""Define where a job keeps its checkpoints: in the memory of its pods, and in a folder there."""

from __future__ import annotations

from typing import Annotated

import msgspec

from falcon_operator.api.markers import Keywords, cel, schema


def _quantity(unit: str, example: str) -> Keywords:
    return cel(
        "self.matches('^[0-9]+([.][0-9]+)?([KMGTPE]i|[kMGTPE])?$')",
        f"is no quantity of {unit}; write for example {example}",
    )


def _absolute(example: str) -> Keywords:
    return cel("self.startsWith('/')", f"is no absolute path; write for example {example}")


class DirectorySpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A folder in each pod's memory, and where what is saved in it is copied to."""

    path: Annotated[str, schema(_absolute("/checkpoints"), minLength=2, maxLength=512)]
    """The folder in the container that trains, such as /checkpoints. No volume may be mounted there."""

    memory: Annotated[str, schema(_quantity("memory", "16Gi"), maxLength=16)]
    """The folder's size, a quantity such as 16Gi: four times what the script saves at a time. It is the trainer's
    memory: request and limit of its container are raised by it. Half of it is kept free for what comes next; older
    files that do not fit are links to their copies."""

    copy_to: Annotated[str, schema(_absolute("/data/run-1"), minLength=2, maxLength=1024)]
    """The durable folder, on a volume that the container mounts and that all nodes can reach. It is made if needed, and
    is this job's alone. $(NAME) stands for a variable of the container."""

    bandwidth: Annotated[str | None, schema(_quantity("bytes a second", "500M"), maxLength=16)] = None
    """The most that each pod copies while its ranks run, a quantity of bytes a second such as 500M. Default: no
    limit."""


class CheckpointSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The job's checkpoints."""

    memory: Annotated[str | None, schema(_quantity("memory", "8Gi"), maxLength=16)] = None
    """Memory of each pod for checkpoints, a quantity such as 8Gi: two buffers for each of the pod's ranks, which
    falcon_torch.Checkpoint fills. It should be twice the state of all ranks of a pod, and a little more. It is
    requested in addition to what the template requests, and counts as the agent's. Default: none, and
    falcon_torch.Checkpoint writes files alone."""

    copies: Annotated[int, schema(minimum=0, maximum=1, default=None)] = 0
    """Copies of each checkpoint in the memory of another pod, on another node: 0 or 1. With 1 each pod needs
    spec.checkpoint.memory twice, and a lost node costs no more steps than a killed process. The pods' agents send them
    over TLS, at ports that the kernel chooses. If it is set while the job runs, it counts for pods that are made later.
    Default 0."""

    copy_bandwidth: Annotated[str | None, schema(_quantity("bytes", "500Mi"), maxLength=16)] = None
    """Bytes of copies that a pod sends a second at most, a quantity such as 500Mi. Default: no limit."""

    interface: Annotated[
        str | None,
        schema(
            cel("self.matches('^[a-zA-Z0-9@._-]+$')", "is no name of a network interface; write for example net1"),
            minLength=1,
            maxLength=15,
        ),
    ] = None
    """The pods' network interface over which copies are sent, such as net1, where a network operator gives pods a
    second one. All pods of the job have it. If it is set while the job runs, it counts for pods that are made later.
    Default: the pod's own address."""

    failure_domain: Annotated[str, schema(minLength=1, maxLength=316)] = "topology.kubernetes.io/zone"
    """Label of nodes by which nodes with the same value fail together, such as a rack's. Copies go to another value
    where that is possible. Default topology.kubernetes.io/zone."""

    directory: DirectorySpec | None = None
    """A folder in the memory of each pod, for scripts that save with torch.save or anything else: they list it, save to
    it and load from it as from any folder. Before the ranks start it is filled from copyTo. What they save is copied
    there behind training, in the order in which it was saved, and what they remove is removed there. The job has
    succeeded when all of it is there. Default: none."""

    interval_seconds: Annotated[int | None, schema(minimum=1, maximum=604800)] = None
    """Seconds between two checkpoints: how often the training code writes one. It is used only for the price of actions
    that restart processes, since the work after the last checkpoint is done again. Default: what has been seen of
    earlier restarts."""
