"""What a job's spec asks of the agents reaches them: from the spec by the pod's manifest to the agent's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from falcon_agent import settings as agent_settings
from falcon_agent.settings import CREDENTIALS
from falcon_core.recovery import Member
from falcon_core.wire.agent_config import AgentConfig
from falcon_core.wire.keys import JobKey
from falcon_operator.manifests.instrument import TLS_DIR
from falcon_operator.manifests.pods import build_pod
from tests.unit.environ import load_with
from tests.unit.operator.manifests.test_instrument import SETTINGS, by_name
from tests.unit.operator.manifests.test_validation import job

MIB = 1 << 20
MEMORY = {"memory": "64Mi", "copies": 1}
replace = msgspec.structs.replace


def received(spec: dict[str, Any], credentials: Path, gateways: str = "gateway:7443") -> AgentConfig:
    """Return what the agent of a pod of this job reads; its Secret is mounted in ``credentials``."""
    member = Member(replica=0, pod_name="gpt2-0-x7kfd", first_rank=0)
    of = job(**spec)
    of = replace(of, metadata=replace(of.metadata, uid="job-uid"))
    pod = build_pod(of, member, replace(SETTINGS, gateways=gateways), excluded=[])
    env = by_name(pod["spec"]["initContainers"])["falcon-agent"]["env"]
    for name in CREDENTIALS:
        (credentials / name).touch()
    # what the kubelet does: it fills the downward API's variables, and mounts the Secret
    environ = {entry["name"]: entry.get("value", "x").replace(TLS_DIR, str(credentials)) for entry in env}
    return load_with(environ, agent_settings.load_settings).config


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"procsPerReplica": 8}, {"procs": 8}),
        ({"checkpoint": {"memory": "64Mi"}}, {"checkpoint_bytes": 64 * MIB, "copies_bytes": 0}),
        ({"checkpoint": MEMORY}, {"checkpoint_bytes": 64 * MIB, "copies_bytes": 64 * MIB}),
        ({"checkpoint": {**MEMORY, "interface": "net1"}}, {"copies_interface": "net1"}),
    ],
)
def test_a_field_of_the_spec_reaches_the_agent(spec: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    config = received(spec, tmp_path)
    assert {name: getattr(config, name) for name in expected} == expected


def test_the_agent_knows_its_job_and_all_gateways(tmp_path: Path) -> None:
    config = received({}, tmp_path, "a:7443,b:7443")
    assert config.key == JobKey("team", "gpt2", "job-uid")
    assert config.gateways == ("a:7443", "b:7443")
    assert (config.checkpoint_bytes, config.copies_bytes, config.copies_interface) == (0, 0, "")


@pytest.mark.parametrize(
    ("wanted", "procs", "gpus", "reads"),
    [(True, 8, 8, True), (True, 8, "8", True), (True, 8, 4, False), (True, 2, None, False), (False, 8, 8, False)],
)
def test_an_agent_sees_gpus_only_where_the_platform_wants_it_and_each_rank_has_one(
    wanted: bool, procs: int, gpus: int | str | None, reads: bool
) -> None:
    of = job(procsPerReplica=procs)
    (container,) = of.spec.template["spec"]["containers"]
    limits = {} if gpus is None else {"limits": {"nvidia.com/gpu": gpus}}
    template = {
        **of.spec.template,
        "spec": {**of.spec.template["spec"], "containers": [{**container, "resources": limits}]},
    }
    of = replace(of, spec=replace(of.spec, template=template), metadata=replace(of.metadata, uid="job-uid"))
    member = Member(replica=0, pod_name="gpt2-0-x7kfd", first_rank=0)
    pod = build_pod(of, member, replace(SETTINGS, gpu_series=wanted), excluded=[])
    agent = by_name(pod["spec"]["initContainers"])["falcon-agent"]
    env = {entry["name"]: entry.get("value", "") for entry in agent["env"]}
    config = msgspec.json.decode(env["FALCON_AGENT_CONFIG"], type=AgentConfig)
    assert config.reads_gpus == reads
    seen = {name: value for name, value in env.items() if name.startswith("NVIDIA_")}
    expected = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}
    assert seen == (expected if reads else {})
    assert "nvidia.com/gpu" not in str(agent["resources"]), "it takes none from the trainer"


_PRIVILEGED = {"securityContext": {"privileged": True}}


@pytest.mark.parametrize(
    ("container", "spec", "is_cpu_only"),
    [
        ({"resources": {"limits": {"cpu": 4, "memory": "8Gi"}}}, {}, True),
        ({"resources": {"limits": {"nvidia.com/gpu": 1}}}, {}, False),
        ({"resources": {"requests": {"amd.com/gpu": 1}}}, {}, False),
        (_PRIVILEGED, {}, False),
        ({}, {"runtimeClassName": "nvidia"}, False),
        ({}, {"resourceClaims": [{"name": "gpu"}]}, False),
        ({}, {"volumes": [{"name": "dev", "hostPath": {"path": "/dev/nvidia0"}}]}, False),
        ({}, {"volumes": [{"name": "data", "hostPath": {"path": "/data"}}]}, True),
    ],
)
def test_cpu_time_is_judged_only_where_no_device_can_compute(
    container: dict[str, Any], spec: dict[str, Any], is_cpu_only: bool, tmp_path: Path
) -> None:
    pod = job().spec.template["spec"]
    containers = [{**pod["containers"][0], **container}]
    config = received({"template": {"spec": {**pod, **spec, "containers": containers}}}, tmp_path)
    assert config.cpu_only == is_cpu_only
