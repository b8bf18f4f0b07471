"""Whether a member's pod has ended, and why, by what its kubelet and its launcher say."""

from __future__ import annotations

from typing import Final

from falcon_core.wire.launch import LaunchStatus
from falcon_operator.api import TrainingJob
from falcon_operator.manifests.pods import trainer_container
from falcon_operator.ports import PodView

_KILLED: Final = 128 + 9  # exit code of a container whose first process got SIGKILL
_OUT_OF_MEMORY: Final = "OOMKilled"


def ended_badly(job: TrainingJob, pod: PodView) -> bool:
    """Check whether the pod has ended, and not because all its ranks ended well."""
    trainer = pod.containers.get(trainer_container(job))
    if trainer is not None and trainer.exit_code is not None:
        return trainer.exit_code != 0
    return pod.phase == "Failed"


def over(job: TrainingJob, pod: PodView) -> bool:
    """Check whether no training process is left in the pod."""
    trainer = pod.containers.get(trainer_container(job))
    return pod.phase in ("Succeeded", "Failed") or (trainer is not None and trainer.exit_code is not None)


def end_message(job: TrainingJob, pod: PodView, launch: LaunchStatus | None) -> str:
    """Return why a pod ended: the trainer's exit, or that of another container that kept the trainer from starting."""
    trainer = pod.containers.get(trainer_container(job))
    parts = [pod.reason, pod.message or pod.disruption]
    if trainer is not None and trainer.exit_code is not None:
        repeated = trainer.exit_reason == _OUT_OF_MEMORY and _outlived_kills(launch)
        parts.insert(0, f"{'exit' if repeated else trainer.exit_reason or 'exit'} {trainer.exit_code}")
    else:
        others = [container for container in pod.containers.values() if container.exit_code]
        parts += [f"container {failed.name} ended with exit code {failed.exit_code}" for failed in others[:1]]
    return ", ".join(part for part in parts if part)


def out_of_memory(job: TrainingJob, pod: PodView, launch: LaunchStatus | None) -> bool:
    """Check whether the kernel ended the trainer's container for memory, its launcher included.

    The kubelet's word "OOMKilled" is no proof where the launcher has counted such a kill: the container has outlived
    it, and the kubelet repeats the word for any later end.
    """
    trainer = pod.containers.get(trainer_container(job))
    if trainer is None or trainer.exit_reason != _OUT_OF_MEMORY or trainer.exit_code != _KILLED:
        return False
    return not _outlived_kills(launch)


def _outlived_kills(launch: LaunchStatus | None) -> int:
    """Count the processes that the kernel has ended for memory in the container while its launcher lived."""
    return (launch.oom_kills or 0) + (launch.oom_kills_before or 0) if launch is not None else 0
