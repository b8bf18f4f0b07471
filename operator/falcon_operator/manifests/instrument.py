"""Add to a training pod what Falcon needs, and nothing else: PodSpec → PodSpec (docs/architecture.md §3).

This module knows a pod and the job's identity on the bus, not the whole ``TrainingJob``: it can instrument pods of
other controllers as well.

- ``falcon-install`` (init) copies the launcher and the shim into an emptyDir, read-only for the trainer;
- ``falcon-agent`` is a native sidecar; it shares two in-memory folders with the trainer and nothing else: each side
  writes to one of them, and sees the other one as read-only;
- the trainer's command is wrapped by ``falcon-launch``;
- where the job keeps checkpoints in memory, both have a tmpfs for them. It counts as the agent's memory, since the
  agent touches its pages first: so the agent's limit contains it, and the trainer's stays as it is. A second one, for
  copies of another pod's checkpoints, is the agent's alone.

All injected containers pass Pod Security "restricted". The agent has a memory limit, but no CPU limit: a throttled
agent would report late, and the agent's own work bounds its use of CPU. In a Guaranteed pod the agent has a CPU limit,
because otherwise the pod would lose its exclusive CPUs (``manifests.injected``). The trainer's own resources stay as
the user set them.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import msgspec

from falcon_core.wire.agent_config import VARIABLE, AgentConfig, encode_config
from falcon_core.wire.launcher.launch import AGENT_DIR, LAUNCH_DIR
from falcon_operator.api.trainingjob import InjectedSpec
from falcon_operator.base.ports import Manifest, PodSettings, RunAs
from falcon_operator.manifests import directory, injected

BIN_DIR = "/falcon/bin"
PYTHON_DIR = "/falcon/python"  # what runs in the interpreters of the user's image
RUN_DIR = "/falcon/run"
TLS_DIR = "/falcon/gateway"
LAUNCHER = f"{BIN_DIR}/falcon-launch"
VOLUME_BIN, VOLUME_TLS = "falcon-bin", "falcon-gateway"
VOLUME_AGENT, VOLUME_LAUNCH = "falcon-run-agent", "falcon-run-launch"  # falcon_core.wire.launcher.launch
VOLUME_CHECKPOINT = "falcon-checkpoint"
VOLUME_COPIES = "falcon-copies"
INSTALL_CONTAINER, AGENT_CONTAINER = "falcon-install", "falcon-agent"
DEFAULT_GRACE_SECONDS = 30  # Kubernetes' own, and the launcher's
AGENT_DIR_MIB = 16  # the plan, the control file, what the next agent has to know
LAUNCH_DIR_MIB = 48  # status and stacks
OUTPUT_MIB = 2  # a process: its newest output, and that of the generation before while the agent reads it
RING_MIB = 24  # a process: its rings of the newest generations


# NVIDIA's container runtime mounts NVML and the devices, without allocating any, and nothing to compute with.
_SEES_GPUS = (
    {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
    {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
)


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The job on the bus, and how its processes are started."""

    agent: AgentConfig
    secret: str  # with ca.crt, jobs-ca.crt, tls.crt, tls.key
    container: str  # name of the container that trains
    launcher: Literal["Falcon", "Own"] = "Falcon"
    track: bool = True  # False: the shim is not preloaded (spec.mitigation.mode: Off)
    directory: directory.Directory | None = None  # in the trainer's memory, copied behind
    keeps_older: bool = False  # the folder of its checkpoints keeps an older one (spec.anomalies.onNaN: Restart)
    injected: InjectedSpec = InjectedSpec()  # the job's own figures for Falcon's containers


def restricted(run_as: RunAs) -> Manifest:
    """Return a container security context that Pod Security "restricted" admits."""
    return {
        "runAsNonRoot": True,
        **msgspec.to_builtins(run_as),
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def instrument(spec: Manifest, identity: Identity, settings: PodSettings) -> Manifest:
    """Return an instrumented copy of a pod's spec. Raises KeyError when it has no container ``identity.container``."""
    result = copy.deepcopy(spec)
    trainer = next((item for item in result["containers"] if item["name"] == identity.container), None)
    if trainer is None:
        raise KeyError(f"no container named {identity.container!r} in the pod's spec")
    _wrap(trainer, identity, grace_seconds(spec))
    # Ours come first: the agent then runs while the user's init containers do their work.
    result["initContainers"] = [
        {
            **_install(settings),
            "resources": injected.resources(
                spec, injected.INSTALL, settings.injected.install.resources, identity.injected.install.resources
            ),
        },
        {
            **_agent(identity.agent, settings),
            "resources": injected.resources(
                spec,
                injected.AGENT,
                settings.injected.agent.resources,
                identity.injected.agent.resources,
                identity.agent.checkpoint_bytes + identity.agent.copies_bytes,
            ),
        },
        *result.get("initContainers", []),
    ]
    # Each rank has a ring and an output file in this folder.
    launch_dir_mib = LAUNCH_DIR_MIB + (RING_MIB + OUTPUT_MIB) * identity.agent.procs
    for each in result["initContainers"]:
        each.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")  # why one failed, as for the trainer
    result["volumes"] = [
        *result.get("volumes", []),
        {"name": VOLUME_BIN, "emptyDir": {"sizeLimit": "64Mi"}},
        {"name": VOLUME_AGENT, "emptyDir": {"medium": "Memory", "sizeLimit": f"{AGENT_DIR_MIB}Mi"}},
        {"name": VOLUME_LAUNCH, "emptyDir": {"medium": "Memory", "sizeLimit": f"{launch_dir_mib}Mi"}},
        {"name": VOLUME_TLS, "secret": {"secretName": identity.secret, "defaultMode": 0o444}},
    ]
    if identity.agent.checkpoint_bytes:
        _add_checkpoints(result, trainer, identity.agent)
        if identity.keeps_older:
            trainer["env"].append({"name": "FALCON_CHECKPOINT_KEEP_OLDER", "value": "1"})
    if identity.directory is not None:
        directory.add(result, trainer, identity.directory)
    return result


def _add_checkpoints(spec: Manifest, trainer: Manifest, config: AgentConfig) -> None:
    """Add the volume for checkpoints in memory to trainer and agent, and its path to the trainer's environment."""
    size = str(config.checkpoint_bytes)
    spec["volumes"].append({"name": VOLUME_CHECKPOINT, "emptyDir": {"medium": "Memory", "sizeLimit": size}})
    agent = next(item for item in spec["initContainers"] if item["name"] == AGENT_CONTAINER)
    # Both map the same buffers: ranks write them, the agent keeps and copies them.
    for container in (trainer, agent):
        container["volumeMounts"].append({"name": VOLUME_CHECKPOINT, "mountPath": config.checkpoint_dir})
    trainer["env"] = [*trainer.get("env", []), {"name": "FALCON_CHECKPOINT_DIR", "value": config.checkpoint_dir}]
    if config.copies_bytes:
        limit = str(config.copies_bytes)
        spec["volumes"].append({"name": VOLUME_COPIES, "emptyDir": {"medium": "Memory", "sizeLimit": limit}})
        agent["volumeMounts"].append({"name": VOLUME_COPIES, "mountPath": config.copies_dir})
        trainer["env"].append({"name": "FALCON_CHECKPOINT_COPIES", "value": "1"})


def grace_seconds(spec: Manifest) -> int:
    """Return how long a pod's processes may take to end after SIGTERM."""
    return int(spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS))


def _wrap(trainer: Manifest, identity: Identity, grace_seconds: int) -> None:
    command = [*trainer.get("command", []), *trainer.pop("args", [])]
    trainer["command"] = [
        LAUNCHER,
        "run",
        "--procs",
        str(identity.agent.procs),
        "--launcher",
        identity.launcher.lower(),
        *(["--python", PYTHON_DIR] if identity.track else ["--shim", "off"]),
        *directory.options(identity.directory, identity.agent.job_uid),
        *([] if grace_seconds == DEFAULT_GRACE_SECONDS else ["--restart-grace-seconds", str(grace_seconds)]),
        "--",
        *command,
    ]
    trainer["volumeMounts"] = [
        *trainer.get("volumeMounts", []),
        {"name": VOLUME_BIN, "mountPath": BIN_DIR, "readOnly": True},
        {"name": VOLUME_BIN, "mountPath": PYTHON_DIR, "subPath": "python", "readOnly": True},
        {"name": VOLUME_AGENT, "mountPath": f"{RUN_DIR}/{AGENT_DIR}", "readOnly": True},
        {"name": VOLUME_LAUNCH, "mountPath": f"{RUN_DIR}/{LAUNCH_DIR}"},
    ]
    # The last lines of a failing job end up in the pod's status, where `kubectl describe pod` shows them.
    trainer.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")


def _install(settings: PodSettings) -> Manifest:
    return {
        "name": INSTALL_CONTAINER,
        "image": settings.agent_image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["/falcon/dist/falcon-launch", "install", BIN_DIR],
        "volumeMounts": [{"name": VOLUME_BIN, "mountPath": BIN_DIR}],
        "securityContext": restricted(settings.run_as),
    }


def _agent(config: AgentConfig, settings: PodSettings) -> Manifest:
    def downward(name: str, path: str) -> dict[str, Any]:
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}

    return {
        "name": AGENT_CONTAINER,
        "image": settings.agent_image,
        "imagePullPolicy": settings.image_pull_policy,
        # This makes an init container a sidecar, which runs with the trainer and does not keep the pod from ending.
        "restartPolicy": "Always",
        "env": [
            {"name": VARIABLE, "value": encode_config(config)},
            downward("FALCON_POD", "metadata.name"),
            downward("FALCON_POD_UID", "metadata.uid"),
            downward("FALCON_NODE", "spec.nodeName"),
            *(_SEES_GPUS if config.reads_gpus else ()),
        ],
        "volumeMounts": [
            {"name": VOLUME_AGENT, "mountPath": f"{RUN_DIR}/{AGENT_DIR}"},
            {"name": VOLUME_LAUNCH, "mountPath": f"{RUN_DIR}/{LAUNCH_DIR}", "readOnly": True},
            {"name": VOLUME_TLS, "mountPath": TLS_DIR, "readOnly": True},
        ],
        "securityContext": restricted(settings.run_as),
    }
