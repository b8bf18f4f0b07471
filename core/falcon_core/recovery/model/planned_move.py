"""Keep the replicas that leave their nodes before anything fails."""

from __future__ import annotations

from falcon_core.recovery.model.stored import Stored


class LeavingNode(Stored, frozen=True, kw_only=True):
    """A node of the job that is to be left though nothing has failed, and how far the replica's move is (``planned``).

    ``since``: of the notice, as far as Falcon has seen it, unix seconds.
    """

    replica: int
    pod_name: str
    node: str
    why: str
    urgent: bool = False
    since: float
    preparing: bool = False  # a pod on another node is being prepared
    blocked: str = ""  # why none is
    retry_at: float = 0.0  # earliest time of the next preparation, unix seconds


class PlannedMove(Stored, frozen=True, kw_only=True):
    """Replicas that leave their nodes in one restart, before anything fails."""

    id: str
    since: float  # of the first notice, unix seconds
    began_at: float  # when the first pod was asked for
    leaving: list[LeavingNode]  # until the restart: all that are being prepared; then those that it has moved
    generation: int = 0  # that the restart ended
    iterations: int = 0  # that this generation had completed
    switched_at: float | None = None  # when the restart began

    @property
    def restarts(self) -> bool:
        """Check whether its restart has begun."""
        return self.switched_at is not None
