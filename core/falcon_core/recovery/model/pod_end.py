"""Why a pod ended: what its kubelet and its launcher say, as the ladder for fail-stop needs it."""

from __future__ import annotations

from typing import Literal

import msgspec

from falcon_core.model import Cause

Owner = Literal["Job", "Falcon", "Cluster", ""]


class PodEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a pod, told by the container that failed first.

    ``owner``: whose doing it is. Job: a container of the user's failed, or the pod exceeded a limit that its own spec
    sets, and so no node is to blame. Cluster: Kubernetes took the pod away for reasons of its own, which no budget
    counts. Falcon: a container of Falcon's failed. "": nothing says it, and the node may be at fault.
    """

    text: str = ""  # for people
    cause: Cause = Cause.POD_LOST
    container: str = ""  # that failed first, if it is not the one that trains
    owner: Owner = ""
    error_class: str = ""  # of what was said about it; empty where the table knows nothing
