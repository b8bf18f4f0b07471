"""Define which pods keep copies of which checkpoints: the command ``peers``, and an agent's report of its copies.

The command is desired state, like the plan, and is separate from it. An agent's port is known only when its pod runs,
so it changes within a generation.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from falcon_core.wire.launcher.launch import Phase
from falcon_core.wire.saves.checkpoint import MAX_HELD, Held

PEERS_VERSION: Final = 1
MAX_REASON: Final = 256
MAX_HOST: Final = 45  # characters of an IPv6 address

Port = Annotated[int, Meta(ge=0, le=65535)]


class PeerPod(msgspec.Struct, frozen=True, array_like=True):
    """One pod of the generation, and where its agent answers other agents."""

    uid: str
    first_rank: int
    host: str = ""
    port: Port = 0  # 0: not known yet
    holder: str = ""  # uid of the pod that is to keep its copies; "": none
    # Uids of the pods that have reported copies of its ranks; its own, where roles were exchanged.
    sources: list[str] = []


class Peers(msgspec.Struct, frozen=True, kw_only=True):
    """Desired state: all pods of a generation, who keeps whose copies, and who already has some."""

    version: int = PEERS_VERSION
    epoch: int  # the leader that wrote it
    generation: int
    phase: Phase  # with Run, the reports of all the generation's pods are known
    procs: int  # ranks of a pod
    bytes_per_second: int = 0  # that a pod sends at most; 0: no limit
    pods: list[PeerPod]

    def pod(self, uid: str) -> PeerPod | None:
        """Return a pod by its uid; None where it is no member."""
        return next((pod for pod in self.pods if pod.uid == uid), None)

    def ranks_of(self, pod: PeerPod) -> range:
        """Return the ranks of a pod."""
        return range(pod.first_rank, pod.first_rank + self.procs)

    def wards(self, uid: str) -> frozenset[int]:
        """Return the ranks whose copies a pod is to keep."""
        return frozenset(rank for pod in self.pods if pod.holder == uid for rank in self.ranks_of(pod))


class CopiesReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An agent's report of copies: its address for them, the copies it keeps, and why its own are not sent."""

    port: Port = 0  # 0: it takes none
    held: Annotated[list[Held], Meta(max_length=MAX_HELD)] = []  # of other pods' ranks
    why: Annotated[str, Meta(max_length=MAX_REASON)] = ""  # its ranks' checkpoints are not copied; "": they are
    host: Annotated[str, Meta(max_length=MAX_HOST)] = ""  # the address of the interface that the job names; "": any
