"""Determine whether a member's pod has ended, and why, from what its kubelet and its launcher report.

The container that failed first is quoted. What the kubelet kills afterwards, and native sidecars in general, is no
reason for a pod's end: a sidecar that fails alone is started again. Where Kubernetes took the whole pod away, its own
words are the reason, and their class in the table of errors says whether the pod had exceeded a limit of its own spec.
"""

from __future__ import annotations

import math
from collections.abc import Set
from typing import Any, Final

import msgspec

from falcon_core.errors.judge import LIKENESS, Judge
from falcon_core.errors.last_words import LastWords
from falcon_core.errors.table import Domain, ErrorClass
from falcon_core.model import Cause
from falcon_core.recovery import Owner, PodEnd
from falcon_core.text import clean, clip
from falcon_core.wire.launcher.launch import LaunchStatus
from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.base.ports import ContainerView, PodView
from falcon_operator.manifests.instrument import AGENT_CONTAINER, INSTALL_CONTAINER
from falcon_operator.manifests.pods import trainer_container

replace = msgspec.structs.replace

_KILLED: Final = 128 + 9  # exit code of a container whose first process got SIGKILL
_TERMINATED: Final = 128 + 15
_OUT_OF_MEMORY: Final = "OOMKilled"
_UNSEEN: Final = "ContainerStatusUnknown"  # the kubelet lost sight of the container, or never started it
_NOT_STARTED: Final = frozenset({"StartError", "ContainerCannotRun", "CreateContainerError", "ContainerStartError"})
_TAKEN: Final = frozenset({"Evicted", "DeadlineExceeded"})
# Reasons of a pod that its kubelet ended for the node's sake; newer kubelets set DisruptionTarget as well.
_DISRUPTED: Final = frozenset({"Terminated", "NodeShutdown", "Shutdown", "Preempting"})
_TOGETHER_SECONDS: Final = 60.0  # a container that failed so long before the training container may be why that ended
_MOST_CHARACTERS: Final = 300
_FALCONS: Final = frozenset({INSTALL_CONTAINER, AGENT_CONTAINER})


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


def pod_end(job: TrainingJob, pod: PodView, launch: LaunchStatus | None, judge: Judge) -> PodEnd:
    """Return why a pod has ended, or is being deleted."""
    message = (pod.message or pod.disruption).rstrip(" .")
    said = ", ".join(part for part in (pod.reason, message) if part)
    # Kubernetes took the whole pod away: what its containers did afterwards explains nothing.
    if is_taken(pod):
        kind = _taken_class(pod, judge)
        return PodEnd(text=said, owner=_taker(pod, kind), error_class=_name(kind))
    kind = said_class(judge, said)
    trainer = pod.containers.get(trainer_container(job))
    failed = _failed_first(job, pod, trainer)
    if pod.deleting and _is_ended_by_kubelet(failed or trainer):
        how = "it was deleted" if ended_badly(job, pod) else ""  # a pod that has yet to end is called deleted anyway
        return PodEnd(text=said or how, owner="Cluster", error_class=_name(kind))
    # Of several containers, the first to fail made the others fail.
    if failed is not None:
        return _of_container(failed, trainer, judge)
    if trainer is None or trainer.exit_code is None:
        return PodEnd(text=said, error_class=_name(kind))
    return _of_trainer(job, pod, trainer, launch, said, judge)


def other_end(job: TrainingJob, pod: PodView, judge: Judge, since: float, *, failed: bool) -> PodEnd:
    """Return which container of the user's, apart from the training container, ended while the pod goes on.

    That is the first one since ``since`` (unix seconds by the node's clock); one that failed comes before one that
    ended with 0, which is left out where ``failed``. An ordinary container is not started again, so that its pod has to
    be made again.
    """
    name = trainer_container(job)
    begun = max(since, pod.started_unix) if pod.started_unix else math.inf  # init containers end before that
    ended = [
        each
        for each in pod.containers.values()
        if each.name != name and each.name not in _FALCONS and each.ended_unix >= begun
        if not (failed and each.exit_code == 0)
    ]
    first = min(ended, key=lambda each: (each.exit_code == 0, each.ended_unix), default=None)
    if first is None:
        return PodEnd()
    if first.exit_code is not None and not first.init:
        end = _of_container(first, None, judge)
        return replace(end, text=f"container {first.name} of its pod ended: {_how(first)}{_quoted(first, judge)}")
    how = first.exited_before or (_how(first) if first.exit_code is not None else "")
    waits = f", {first.waiting_reason}: {_brief(first.waiting_message)}" if first.waiting_reason else ""
    text = f"sidecar {first.name} of its pod ended ({how or 'exit'}), and its kubelet starts it again{waits}"
    return PodEnd(text=text, cause=Cause.CONTAINER_FAILED, container=first.name, owner="Job", begins_again=True)


def is_taken(pod: PodView) -> bool:
    """Check whether Kubernetes takes the pod as a whole, or has taken it."""
    return bool(pod.disruption) or pod.reason in _TAKEN or pod.reason in _DISRUPTED


def exceeds_own_limit(pod: PodView, judge: Judge) -> bool:
    """Check whether Kubernetes takes the pod for a limit that its own spec sets."""
    return is_taken(pod) and _taker(pod, _taken_class(pod, judge)) == "Job"


def said_class(judge: Judge, said: str) -> ErrorClass | None:
    """Return the class of what Kubernetes says of a pod; None where the table knows nothing."""
    finding = judge.report(said) if said else None
    if finding is None:
        return None
    # What Kubernetes says of a pod is about its place: a name of hardware in it is what the pod asked for.
    by_likeness = finding.rule == LIKENESS and finding.error_class.blames_hardware
    return None if by_likeness else judge.get(finding.name)


def native_sidecars(job: TrainingJob) -> Set[str]:
    """Return the names of the containers that are started again whenever they end."""
    template: dict[str, Any] = job.spec.template["spec"]
    users = template.get("initContainers") or []
    return {AGENT_CONTAINER} | {str(each.get("name")) for each in users if each.get("restartPolicy") == "Always"}


def _taken_class(pod: PodView, judge: Judge) -> ErrorClass | None:
    # Not the word Evicted alone: it does not tell for whose sake.
    return said_class(judge, pod.message or pod.disruption or pod.reason)


def _taker(pod: PodView, kind: ErrorClass | None) -> Owner:
    """Return who took the pod away; "" where nothing shows it."""
    # The pod exceeded a limit that its own spec sets.
    if kind is not None and kind.domain is Domain.CONTAINER and not kind.disruption:
        return "Job"
    for_the_cluster = pod.deleting or pod.reason in _DISRUPTED or (kind is not None and kind.disruption)
    return "Cluster" if for_the_cluster else ""


def _failed_first(job: TrainingJob, pod: PodView, trainer: ContainerView | None) -> ContainerView | None:
    """Return the container, unless it is the training container, whose failure ended the pod; None where none did."""
    name, sidecars = trainer_container(job), native_sidecars(job)
    failed = [
        each
        for each in pod.containers.values()
        if each.exit_code and each.name != name and each.name not in sidecars and each.exit_reason != _UNSEEN
    ]
    first = min(failed, key=lambda each: each.ended_unix, default=None)
    # An init container fails before the trainer starts; and without the trainer's own end, times cannot be compared.
    if first is None or first.init or trainer is None or trainer.exit_code is None or trainer.exit_reason == _UNSEEN:
        return first
    before = trainer.ended_unix - first.ended_unix
    return first if 0 < before <= _TOGETHER_SECONDS else None


def _of_container(failed: ContainerView, trainer: ContainerView | None, judge: Judge) -> PodEnd:
    ours = failed.name in _FALCONS
    words = _words(failed, judge)
    # The kernel's kill is certain evidence; printed words may come from anything before it.
    error_class = "ContainerOutOfMemory" if failed.exit_reason == _OUT_OF_MEMORY else ""
    if not error_class and failed.exit_reason in _NOT_STARTED:
        error_class = _name(said_class(judge, f"{failed.exit_reason}: {failed.exit_message}"))
    if not error_class and words is not None:
        error_class = words.error_class
    which = "Falcon's own container" if ours else "init container" if failed.init else "container"
    after = ""
    # Say what became of the training: its exit is what the owner sees first.
    if not failed.init and trainer is not None and trainer.exit_code is not None:
        after = f"; then the container that trains: {_how(trainer)}"
    return PodEnd(
        text=f"{which} {failed.name} failed first: {_how(failed)}{_quoted(failed, judge)}{after}",
        cause=Cause.POD_LOST if ours else Cause.CONTAINER_FAILED,
        container=failed.name,
        # A container that could not even be started may be its node's fault.
        owner="Falcon" if ours else "" if failed.exit_reason in _NOT_STARTED else "Job",
        error_class=error_class,
    )


def _words(container: ContainerView, judge: Judge) -> LastWords | None:
    return judge.last_words(container.exit_message) if container.exit_message else None


def _quoted(container: ContainerView, judge: Judge) -> str:
    words = _words(container, judge)
    return f": {words.text}" if words is not None and words.text else ""


def _brief(message: str) -> str:
    return clip(clean(message), _MOST_CHARACTERS)


def _of_trainer(
    job: TrainingJob, pod: PodView, trainer: ContainerView, launch: LaunchStatus | None, said: str, judge: Judge
) -> PodEnd:
    repeated = trainer.exit_reason == _OUT_OF_MEMORY and _outlived_kills(launch)
    how = f"exit {trainer.exit_code}" if repeated else _how(trainer)
    # The kernel ended the container's first process, so its memory limit is the reason.
    if trainer.exit_reason == _OUT_OF_MEMORY and trainer.exit_code == _KILLED and not repeated:
        return PodEnd(text=how, cause=Cause.OUT_OF_MEMORY, owner="Job", error_class="ContainerOutOfMemory")
    kind = None
    if trainer.exit_reason in _NOT_STARTED:
        message = _brief(trainer.exit_message)
        kind = said_class(judge, f"{trainer.exit_reason}: {message}")
        how = f"{how}: {message}" if message else how
    parts = (how, _from_outside(job, pod, trainer), said)
    return PodEnd(text=", ".join(part for part in parts if part), error_class=_name(kind))


def _from_outside(job: TrainingJob, pod: PodView, trainer: ContainerView) -> str:
    """Say what may have ended a container that ended by a signal, though nothing deleted or disrupted its pod."""
    # Another end is explained by the exit code, the deletion or the memory limit.
    if trainer.exit_code not in (_KILLED, _TERMINATED) or pod.deleting or trainer.exit_reason == _OUT_OF_MEMORY:
        return ""
    name = trainer_container(job)
    spec: dict[str, Any] = next((c for c in job.spec.template["spec"]["containers"] if c.get("name") == name), {})
    probes = [probe for probe in ("livenessProbe", "startupProbe") if spec.get(probe)]
    if probes:
        return f"ended from outside: its {' or '.join(probes)} may have failed (kubectl describe pod {pod.name})"
    return "SIGTERM from outside, though nothing deleted the pod" if trainer.exit_code == _TERMINATED else ""


def _is_ended_by_kubelet(container: ContainerView | None) -> bool:
    """Check whether a container ended by a signal that a kubelet sends to end a pod, as far as its status says."""
    if container is None or container.exit_code not in (_KILLED, _TERMINATED):
        return False
    return container.exit_reason not in (_OUT_OF_MEMORY, *_NOT_STARTED)


def _how(container: ContainerView) -> str:
    return f"{container.exit_reason or 'exit'} {container.exit_code}"


def _name(kind: ErrorClass | None) -> str:
    return kind.name if kind is not None else ""


def _outlived_kills(launch: LaunchStatus | None) -> int:
    """Count the processes that the kernel has ended for memory in the container while its launcher lived.

    The kubelet's word "OOMKilled" is no proof then: it repeats the word for any later end.
    """
    return (launch.oom_kills or 0) + (launch.oom_kills_before or 0) if launch is not None else 0
