"""Find what is wrong with a spec that the API server accepted, and name the field, the reason and the remedy.

The CRD's schema and CEL rules refuse what they can see when a job is applied. This module checks what they cannot see:
the words of a command, paths that have to be normalised, fields of the pod that pass through untyped, and the pool that
a job names. What Kubernetes itself checks of a pod (images, resources, …) is left to the server-side dry run.

*Problems* keep a job from running. *Notes* do not, and neither does what is wrong with the job's pool: the job runs,
but some of what it asks for will not happen.
"""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Iterator
from typing import Any

import msgspec

from falcon_core.anomalies.output_numbers import MetricError, check_metrics
from falcon_core.errors.judge import ErrorRules, job_judge
from falcon_core.errors.table import TableError
from falcon_core.recovery.views import strategy_type
from falcon_core.wire.saves.checkpoint import least_memory_bytes
from falcon_operator.api.common import Resources
from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.api.warmpool import WarmPool
from falcon_operator.manifests import directory, template
from falcon_operator.manifests.amounts import MISFIT_REMEDY, does_not_fit, not_a_quantity
from falcon_operator.manifests.directory import RESERVED_PATH
from falcon_operator.manifests.injected import AGENT, CPU, INSTALL, MEMORY
from falcon_operator.manifests.qos import is_guaranteed, quantity

_LAUNCHERS = frozenset({"torchrun", "mpirun", "mpiexec", "deepspeed", "accelerate", "horovodrun", "srun"})
_LAUNCHER_MODULES = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "deepspeed.launcher.launch", "accelerate.commands.launch"}
)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of a job's spec; ``str()`` of it is a condition's message."""

    field: str  # as a path from the object's root: "spec.launcher"
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}: {self.remedy}"


def problems(job: TrainingJob, error_overrides: str = "") -> list[Problem]:
    """Return why the job cannot run as written; empty if it can.

    ``error_overrides``: the platform's part of the table of error classes, which the job's rules may refer to.
    """
    return [
        *_template(job),
        *_command(job),
        *_launcher(job),
        *_operating_system(job),
        *_name_resolution(job),
        *_mounts(job),
        *_checkpoint_memory(job),
        *_copies(job),
        *_checkpoint_directory(job),
        *_injected(job),
        *_error_rules(job, error_overrides),
        *_metrics(job),
        *_on_nan(job),
        *_verification(job),
    ]


def notes(job: TrainingJob) -> list[Problem]:
    """Return what will not happen though the job asks for it."""
    return [*_strategies(job), *_probes(job)]


def pool_problems(job: TrainingJob, pool: WarmPool | None) -> list[Problem]:
    """Return what is wrong with the job's pool as observed (None: no pool has the name that the job gives).

    Empty where the job names no pool. The job runs in any case; only its replacements find no spare.
    """
    reference = job.spec.warm_pool_ref
    if reference is None:
        return []
    field = "spec.warmPoolRef.name"
    if pool is None:
        return [
            Problem(
                field=field,
                message=f"there is no WarmPool {reference.name}, so the job runs without spares",
                remedy="create it, correct the name, or remove spec.warmPoolRef",
            )
        ]
    allowed = pool.spec.allowed_namespaces
    if allowed and job.metadata.namespace not in allowed:
        return [
            Problem(
                field=field,
                message=(
                    f"WarmPool {reference.name} does not serve namespace {job.metadata.namespace},"
                    " so the job runs without spares"
                ),
                remedy="have the namespace added to the pool's spec.allowedNamespaces, or refer to another pool",
            )
        ]
    return []


def misfits(job: TrainingJob) -> list[Problem]:
    """Return the parts of the template that have a type with which no pod can be built."""
    return [
        Problem(field=field, message=message, remedy=remedy)
        for field, message, remedy in template.misfits(job.spec.template)
    ]


def _template(job: TrainingJob) -> Iterator[Problem]:
    for field in template.null_items(job.spec.template):
        yield Problem(field=field, message="an item of this list is null", remedy="remove the item, or write it out")


def _command(job: TrainingJob) -> Iterator[Problem]:
    """Yield a problem if the program's name is empty.

    The launcher would look up an empty name as the first folder of PATH, which cannot be executed.
    """
    for index, container in _trainer(job):
        program = next(iter(_list(container, "command")), None)
        if isinstance(program, str) and not program.strip():
            yield Problem(
                field=f"spec.template.spec.containers[{index}].command[0]",
                message="the name of the program is empty",
                remedy='set it, for example command: ["python", "train.py"]',
            )


def _error_rules(job: TrainingJob, overrides: str) -> Iterator[Problem]:
    """Yield the first problem of the job's own rules for its errors."""
    try:
        job_judge(ErrorRules(overrides, tuple(job.spec.recovery.rules)))
    except TableError as error:
        field, _, said = str(error).partition(": ")
        message, _, remedy = said.rpartition("; ")
        yield Problem(field=field, message=message, remedy=remedy)


def _metrics(job: TrainingJob) -> Iterator[Problem]:
    """Yield the first problem of the numbers that the job names in its ranks' output."""
    try:
        check_metrics(job.spec.anomalies.metrics)
    except MetricError as error:
        field, _, said = str(error).partition(": ")
        message, _, remedy = said.rpartition("; ")
        yield Problem(field=field, message=message, remedy=remedy)


def _verification(job: TrainingJob) -> Iterator[Problem]:
    """Yield a problem if results are to be compared that no shim would see."""
    if job.spec.anomalies.verify_every and job.spec.mitigation.mode == "Off":
        yield Problem(
            field="spec.anomalies.verifyEvery",
            message="with spec.mitigation.mode Off Falcon sees no call of the ranks, so that no result can be compared",
            remedy="set spec.mitigation.mode to Observe or Enforce, or remove the field",
        )


def _on_nan(job: TrainingJob) -> Iterator[Problem]:
    """Yield why a job could not be restarted from before a number that stays NaN."""
    if job.spec.anomalies.on_nan != "Restart":
        return
    field = "spec.anomalies.onNaN"
    if job.spec.checkpoint.memory is None:
        yield Problem(
            field=field,
            message="Restart chooses among checkpoints of falcon_torch.Checkpoint, and Falcon keeps none",
            remedy="set spec.checkpoint.memory, or remove the field",
        )
    if job.spec.mitigation.mode != "Enforce":
        yield Problem(
            field=field,
            message=f"with spec.mitigation.mode {job.spec.mitigation.mode} Falcon restarts no ranks that run",
            remedy="set spec.mitigation.mode to Enforce, or remove the field",
        )


def _launcher(job: TrainingJob) -> Iterator[Problem]:
    """Yield a problem if the command of a job with Falcon's launcher runs a launcher itself.

    Started once a rank, that launcher would start procsPerReplica × procsPerReplica processes.
    """
    if job.spec.launcher == "Own":
        return
    for _, container in _trainer(job):
        words = [str(word) for word in [*_list(container, "command"), *_list(container, "args")]]
        found = _launcher_in(words)
        if found is not None:
            yield Problem(
                field="spec.launcher",
                message=f"the command runs {found}, a launcher itself, which launcher Falcon would start for each rank",
                remedy="set spec.launcher to Own, or let the command be the training program",
            )


def _launcher_in(words: list[str]) -> str | None:
    if words and posixpath.basename(words[0]) in _LAUNCHERS:
        return posixpath.basename(words[0])
    modules = [module for flag, module in itertools.pairwise(words) if flag == "-m"]
    # the first -m is the interpreter's own; any later one belongs to the program
    return modules[0] if modules and modules[0] in _LAUNCHER_MODULES else None


def _operating_system(job: TrainingJob) -> Iterator[Problem]:
    name = _dict(_pod(job), "os").get("name", "linux")
    if name != "linux":
        yield Problem(
            field="spec.template.spec.os.name",
            message=f"Falcon's launcher and agent run on linux, not on {name}",
            remedy="remove the field or set it to linux",
        )


def _name_resolution(job: TrainingJob) -> Iterator[Problem]:
    """Yield a problem if the pod does not ask the cluster's DNS, by which the agent finds the gateway."""
    pod = _pod(job)
    policy = pod.get("dnsPolicy", "ClusterFirst")
    field = "spec.template.spec.dnsPolicy"
    if policy == "Default":
        yield Problem(
            field=field,
            message="with Default the agent cannot resolve the cluster's Services, Falcon's gateway among them",
            remedy="remove the field, or set ClusterFirstWithHostNet where hostNetwork is true",
        )
    elif policy == "ClusterFirst" and pod.get("hostNetwork") is True:
        yield Problem(
            field=field,
            message="with hostNetwork ClusterFirst asks the node's DNS, which does not know the cluster's Services",
            remedy="set it to ClusterFirstWithHostNet",
        )


def _mounts(job: TrainingJob) -> Iterator[Problem]:
    """Yield a problem for each mount into the reserved path, also where the path is spelt in another way.

    The CRD's CEL rules refuse only the plain spelling.
    """
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(_dicts(_pod(job), kind)):
            for number, mount in enumerate(_dicts(container, "volumeMounts")):
                path = posixpath.normpath("/" + str(mount.get("mountPath", "")).lstrip("/"))
                if path == RESERVED_PATH or path.startswith(f"{RESERVED_PATH}/"):
                    yield Problem(
                        field=f"spec.template.spec.{kind}[{index}].volumeMounts[{number}].mountPath",
                        message=f"{RESERVED_PATH} and what lies below it are Falcon's",
                        remedy="mount the volume elsewhere",
                    )


def _checkpoint_memory(job: TrainingJob) -> Iterator[Problem]:
    """Yield why the memory for checkpoints is of no use, or does not fit into the pod's own limit."""
    memory, ranks = job.spec.checkpoint.memory, job.spec.procs_per_replica
    if memory is None:
        return
    field = "spec.checkpoint.memory"
    try:
        asked = quantity(memory)
    except ValueError as error:
        yield Problem(field=field, message=str(error), remedy="write one, such as 8Gi")
        return
    least = least_memory_bytes(ranks)
    if asked < least:
        yield Problem(
            field=field,
            message=f"{memory} is too little for two buffers for each of the pod's {ranks} ranks",
            remedy=f"set it to twice the state of all the pod's ranks, at least {least >> 20}Mi",
        )
    if job.spec.mitigation.mode == "Off":
        yield Problem(
            field=field,
            message="with spec.mitigation.mode Off the ranks do not get falcon_torch, which fills the memory",
            remedy="set spec.mitigation.mode to Observe, or remove spec.checkpoint.memory",
        )
    copies = job.spec.checkpoint.copies
    words = f"{memory} and as much for copies" if copies else memory
    # Copies of other pods' checkpoints take as much memory as the pod's own.
    if misfit := does_not_fit(_pod(job), asked * (1 + copies), words):
        yield Problem(field=field, message=misfit, remedy=MISFIT_REMEDY)


def _copies(job: TrainingJob) -> Iterator[Problem]:
    """Yield why no copies of checkpoints can be made."""
    checkpoint = job.spec.checkpoint
    if wrong := not_a_quantity(checkpoint.copy_bandwidth):
        yield Problem(
            field="spec.checkpoint.copyBandwidth", message=wrong, remedy="write bytes a second, such as 500Mi"
        )
    if not checkpoint.copies:
        return
    field = "spec.checkpoint.copies"
    if checkpoint.memory is None:
        yield Problem(
            field=field, message="there is nothing to copy", remedy="set spec.checkpoint.memory, or remove the field"
        )
    if job.spec.replicas < 2:
        yield Problem(
            field=field,
            message="a job of one pod has no other pod that could keep a copy",
            remedy="set spec.replicas to 2 or more, or remove the field",
        )


def _checkpoint_directory(job: TrainingJob) -> Iterator[Problem]:
    for _, trainer in _trainer(job):
        for field, message, remedy in directory.problems(job.spec.checkpoint.directory, _pod(job), trainer):
            yield Problem(field=field, message=message, remedy=remedy)


def _injected(job: TrainingJob) -> Iterator[Problem]:
    """Yield why Falcon's containers cannot run, or take the pod's class, with the figures that the job sets."""
    containers = (("agent", job.spec.injected.agent, AGENT), ("install", job.spec.injected.install, INSTALL))
    for name, container, defaults in containers:
        field, own = f"spec.injected.{name}.resources", container.resources
        if wrong := _first_wrong(own):
            yield Problem(field=field, message=wrong, remedy="write one, such as 500m or 64Mi")
            continue
        for key, least in defaults.least_limits.items():
            if key in own.limits and quantity(own.limits[key]) < quantity(least):
                yield Problem(
                    field=f"{field}.limits.{key}",
                    message=f"with {own.limits[key]} falcon-{name} does not get its work done",
                    remedy=f"set it to {least} or more, or remove it",
                )
        for key in sorted(own.requests.keys() & own.limits.keys()):
            yield from _contradiction(job, f"{field}.requests.{key}", own.requests[key], own.limits[key])


def _contradiction(job: TrainingJob, field: str, request: int | str, limit: int | str) -> Iterator[Problem]:
    """Yield why a container of Falcon's cannot have both figures of a resource."""
    if quantity(request) > quantity(limit):
        message = f"{request} is more than the limit of {limit}"
        yield Problem(field=field, message=message, remedy="lower it, or raise the limit")
    elif quantity(request) < quantity(limit) and field.endswith((CPU, MEMORY)) and _is_guaranteed(job):
        message = "it differs from the limit, so the pod would not be Guaranteed as your containers are"
        yield Problem(field=field, message=message, remedy=f"set it to {limit}, or remove it")


def _first_wrong(own: Resources) -> str:
    """Return why the first figure that is no quantity is none; "" where all are."""
    found = (not_a_quantity(str(value)) for value in (*own.requests.values(), *own.limits.values()))
    return next(filter(None, found), "")


def _is_guaranteed(job: TrainingJob) -> bool:
    """Check whether the user's containers make a Guaranteed pod, each by its own resources."""
    if any(template.misfits(job.spec.template)):
        return False
    return not _pod(job).get("resources") and is_guaranteed(_pod(job))


def _strategies(job: TrainingJob) -> Iterator[Problem]:
    types = [strategy_type(strategy.type) for strategy in job.spec.mitigation.strategies]
    for index, facts in enumerate(types):
        if job.spec.replicas < facts.least_pods:
            yield Problem(
                field=f"spec.mitigation.strategies[{index}].type",
                message=f"{facts.name} {facts.does_nothing} in a job of {job.spec.replicas} pods",
                remedy=f"remove it, or set spec.replicas to {facts.least_pods} or more",
            )
    taking = next((facts.name for facts in types if facts.takes_spare), "")
    if job.spec.warm_pool_ref is None and taking:
        yield Problem(
            field="spec.warmPoolRef",
            message=f"without a warm pool {taking} finds only nodes that happen to be free, untested",
            remedy="set spec.warmPoolRef to a WarmPool, or accept to wait for a node",
        )


def _probes(job: TrainingJob) -> Iterator[Problem]:
    """Yield a problem for a liveness probe of the trainer.

    When the probe fails, the kubelet kills the container, and with it the launcher that would have restarted the ranks.
    """
    for index, container in _trainer(job):
        if "livenessProbe" in container:
            yield Problem(
                field=f"spec.template.spec.containers[{index}].livenessProbe",
                message="it would kill the whole container where Falcon restarts the processes in place",
                remedy="remove it: hangs are found by the missing progress of the ranks",
            )


def _trainer(job: TrainingJob) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the index and the manifest of the container that trains. CEL has made sure that there is exactly one."""
    for index, container in enumerate(_dicts(_pod(job), "containers")):
        if job.spec.container is None or container.get("name") == job.spec.container:
            yield index, container


def _pod(job: TrainingJob) -> dict[str, Any]:
    return _dict(job.spec.template, "spec")


# The template preserves unknown fields, so that any of them may be of any type.


def _dict(value: dict[str, Any], key: str) -> dict[str, Any]:
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def _list(value: dict[str, Any], key: str) -> list[Any]:
    found = value.get(key)
    return found if isinstance(found, list) else []


def _dicts(value: dict[str, Any], key: str) -> list[dict[str, Any]]:
    return [item for item in _list(value, key) if isinstance(item, dict)]
