"""Keep the replicas that leave their nodes before anything fails."""

from __future__ import annotations

from falcon_core.recovery.model.stored import Stored


class LeavingNode(Stored, frozen=True, kw_only=True):
    """A node of the job that is to be left though nothing has failed, and how far the replica's move is (``drain``).

    ``since``: when Falcon first saw the notice, unix seconds.
    """

    replica: int
    pod_name: str
    node: str
    why: str
    urgent: bool = False
    since: float
    preparing: bool = False  # a pod on another node is being prepared
    blocked: str = ""  # reason why no pod is being prepared
    retry_at: float = 0.0  # earliest time of the next preparation, unix seconds


class PlannedMove(Stored, frozen=True, kw_only=True):
    """Replicas that leave their nodes in one restart, before anything fails."""

    id: str
    since: float  # time of the first notice, unix seconds
    began_at: float  # when the first pod was ordered
    leaving: list[LeavingNode]  # until the restart, all nodes with a pod in preparation; then those that were left
    generation: int = 0  # the generation that the restart ended
    iterations: int = 0  # iterations that this generation had completed
    switched_at: float | None = None  # when the restart began

    @property
    def restarts(self) -> bool:
        """Check whether its restart has begun."""
        return self.switched_at is not None
