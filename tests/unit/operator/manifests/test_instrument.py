"""PodSpec → PodSpec: what is added, what is wrapped, and what is left alone."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from falcon_core.wire.agent_config import VARIABLE, AgentConfig, decode_config
from falcon_operator.base.ports import PodSettings, RunAs
from falcon_operator.manifests.instrument import Identity, instrument

SETTINGS = PodSettings(agent_image="falcon/agent:1", image_pull_policy="Never", gateways="gateway:7443")
SPEC: dict[str, Any] = {
    "containers": [
        {
            "name": "trainer",
            "image": "mine",
            "command": ["python", "train.py"],
            "args": ["--steps", "10"],
            "env": [{"name": "A", "value": "b"}],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            "resources": {"limits": {"cpu": "4"}},
        },
        {"name": "logger", "image": "other", "command": ["tail"]},
    ],
    "initContainers": [{"name": "fetch", "image": "mine"}],
    "volumes": [{"name": "data", "emptyDir": {}}],
    "schedulerName": "volcano",
    "unknown": {"field": ["stays"]},
}


CONFIG = AgentConfig(
    namespace="ml",
    job="gpt2",
    job_uid="u-1",
    procs=8,
    gateways=("gateway:7443",),
    gateway_tls_dir="/falcon/gateway",
    run_dir="/falcon/run",
)


def identity(agent: dict[str, Any] | None = None, **fields: Any) -> Identity:
    """Return the identity of a job of which the agent gets these fields."""
    config = msgspec.structs.replace(CONFIG, **(agent or {}))
    return Identity(**{"agent": config, "secret": "gpt2-falcon-gateway", "container": "trainer", **fields})


def by_name(items: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in items}


def test_the_command_is_wrapped_and_the_rest_of_the_container_stays() -> None:
    trainer = by_name(instrument(SPEC, identity(), SETTINGS)["containers"])["trainer"]
    assert trainer["command"] == [
        *("/falcon/bin/falcon-launch", "run", "--procs", "8", "--launcher", "falcon"),
        *("--python", "/falcon/python", "--"),
        *("python", "train.py", "--steps", "10"),
    ]
    assert "args" not in trainer
    assert trainer["env"] == [{"name": "A", "value": "b"}], "LD_PRELOAD and ranks are falcon-launch's business"
    assert trainer["resources"] == {"limits": {"cpu": "4"}}
    mounts = {mount["name"]: mount for mount in reversed(trainer["volumeMounts"])}
    assert mounts["falcon-bin"] == {"name": "falcon-bin", "mountPath": "/falcon/bin", "readOnly": True}
    python = {"name": "falcon-bin", "mountPath": "/falcon/python", "subPath": "python", "readOnly": True}
    assert python in trainer["volumeMounts"]
    assert set(mounts) == {"data", "falcon-bin", "falcon-run-agent", "falcon-run-launch"}, "no credentials"
    assert trainer["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_agent_and_trainer_write_to_a_folder_of_their_own_and_read_the_others() -> None:
    spec = instrument(SPEC, identity(), SETTINGS)
    trainer, agent = by_name(spec["containers"])["trainer"], by_name(spec["initContainers"])["falcon-agent"]
    places = {"falcon-run-agent": "/falcon/run/agent", "falcon-run-launch": "/falcon/run/launch"}
    for container, writable in ((trainer, "falcon-run-launch"), (agent, "falcon-run-agent")):
        mounts = by_name(container["volumeMounts"])
        assert {name: mounts[name]["mountPath"] for name in places} == places
        assert {name for name in places if not mounts[name].get("readOnly")} == {writable}


def test_the_grace_of_a_restart_is_the_pods_own() -> None:
    def command(**fields: int) -> list[str]:
        return list(by_name(instrument({**SPEC, **fields}, identity(), SETTINGS)["containers"])["trainer"]["command"])

    assert command(terminationGracePeriodSeconds=120)[8:11] == ["--restart-grace-seconds", "120", "--"]
    assert "--restart-grace-seconds" not in command()


def test_an_own_launcher_is_named_in_the_command() -> None:
    command = by_name(instrument(SPEC, identity(launcher="Own"), SETTINGS)["containers"])["trainer"]["command"]
    assert command[4:6] == ["--launcher", "own"]


def test_everything_else_passes_through_and_the_input_is_not_touched() -> None:
    before = copy.deepcopy(SPEC)
    result = instrument(SPEC, identity(), SETTINGS)
    assert before == SPEC
    assert result["containers"][1] == SPEC["containers"][1]
    quoted = {"terminationMessagePolicy": "FallbackToLogsOnError"}  # the reason, should it fail
    assert result["initContainers"][-1] == {**SPEC["initContainers"][0], **quoted}
    assert result["volumes"][0] == SPEC["volumes"][0]
    assert (result["schedulerName"], result["unknown"]) == ("volcano", {"field": ["stays"]})


def test_the_agent_is_a_native_sidecar_without_a_cpu_limit() -> None:
    agent = by_name(instrument(SPEC, identity(), SETTINGS)["initContainers"])["falcon-agent"]
    assert agent["restartPolicy"] == "Always"
    assert set(agent["resources"]["limits"]) == {"memory"}
    env = by_name(agent["env"])
    assert {name: decode_config(entry["value"]) for name, entry in env.items() if "value" in entry} == {
        VARIABLE: CONFIG
    }
    assert {
        name: entry["valueFrom"]["fieldRef"]["fieldPath"] for name, entry in env.items() if "valueFrom" in entry
    } == {
        "FALCON_POD": "metadata.name",
        "FALCON_POD_UID": "metadata.uid",
        "FALCON_NODE": "spec.nodeName",
    }


def test_the_volumes() -> None:
    volumes = by_name(instrument(SPEC, identity(), SETTINGS)["volumes"])
    assert volumes["falcon-run-agent"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Mi"}
    assert volumes["falcon-run-launch"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "256Mi"}
    assert volumes["falcon-gateway"]["secret"] == {"secretName": "gpt2-falcon-gateway", "defaultMode": 0o444}


@pytest.mark.parametrize("name", ["falcon-install", "falcon-agent"])
def test_what_is_injected_passes_pod_security_restricted(name: str) -> None:
    container = by_name(instrument(SPEC, identity(), SETTINGS)["initContainers"])[name]
    context = container["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] != 0
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context["readOnlyRootFilesystem"] is True
    assert container["image"] == "falcon/agent:1"


@pytest.mark.parametrize(
    ("run_as", "fields"),
    [
        (RunAs(run_as_user=1000700000, run_as_group=0), {"runAsUser": 1000700000, "runAsGroup": 0}),
        (RunAs(run_as_user=7), {"runAsUser": 7}),
        (RunAs(), {}),
    ],
)
def test_the_platform_says_as_whom_injected_containers_run_or_leaves_it_out(
    run_as: RunAs, fields: dict[str, int]
) -> None:
    settings = msgspec.structs.replace(SETTINGS, run_as=run_as)
    injected = by_name(instrument(SPEC, identity(), settings)["initContainers"])
    for name in ("falcon-install", "falcon-agent"):
        context = injected[name]["securityContext"]
        assert {field: value for field, value in context.items() if field in ("runAsUser", "runAsGroup")} == fields
        assert context["runAsNonRoot"] is True


def test_a_container_that_is_not_there() -> None:
    with pytest.raises(KeyError, match="no container named 'nobody'"):
        instrument(SPEC, identity(container="nobody"), SETTINGS)


def test_mode_off_starts_the_ranks_without_the_shim() -> None:
    spec = {"containers": [{"name": "trainer", "image": "x", "command": ["python", "train.py"]}]}
    (trainer,) = instrument(spec, identity(track=False), SETTINGS)["containers"]
    assert trainer["command"][-5:] == ["--shim", "off", "--", "python", "train.py"]
