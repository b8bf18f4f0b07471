"""Statuses of pods as kubelets write them, decoded as the operator does."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec

from falcon_operator.base.ports import PodView
from falcon_operator.cluster.pods import item

Status = dict[str, Any]


def at(second: int) -> str:
    """Return a time of the day on which all statuses were written."""
    return f"2026-05-04T10:{second // 60:02d}:{second % 60:02d}Z"


def at_unix(second: int) -> float:
    """Return the same time as unix seconds."""
    return dt.datetime.fromisoformat(at(second)).timestamp()


def waiting(name: str, reason: str = "PodInitializing", message: str = "") -> Status:
    state = {"reason": reason, **({"message": message} if message else {})}
    return {"name": name, "ready": False, "restartCount": 0, "state": {"waiting": state}}


def running(name: str, since: int = 1) -> Status:
    return {"name": name, "ready": True, "restartCount": 0, "state": {"running": {"startedAt": at(since)}}}


def ended(name: str, code: int, second: int = 9, reason: str = "", message: str = "") -> Status:
    """Return a container that ended; ``reason``: "" for the one that goes with the exit code."""
    state = {
        "exitCode": code,
        "reason": reason or ("Error" if code else "Completed"),
        "startedAt": at(1),
        "finishedAt": at(second),
        "containerID": f"containerd://{name}",
        **({"message": message} if message else {}),
    }
    return {"name": name, "ready": False, "restartCount": 0, "state": {"terminated": state}}


def disrupted(message: str, reason: str = "TerminationByKubelet") -> list[Status]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}]


def pod(
    containers: list[Status],
    init: list[Status] | None = None,
    *,
    phase: str = "Failed",
    reason: str = "",
    message: str = "",
    conditions: list[Status] | None = None,
) -> PodView:
    """Decode a pod that was scheduled at second 0."""
    own = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at(0)}]
    status = {
        "phase": phase,
        **({"reason": reason} if reason else {}),
        **({"message": message} if message else {}),
        "conditions": [*own, *(conditions or [])],
        "initContainerStatuses": init or [],
        "containerStatuses": containers,
    }
    metadata = {"name": "gpt2-0-a", "namespace": "ml", "uid": "p", "resourceVersion": "7", "creationTimestamp": at(0)}
    body = {"metadata": metadata, "spec": {"nodeName": "node-a"}, "status": status}
    view = item(msgspec.json.encode(body)).view
    assert view is not None
    return view
