"""The agent's settings: what the operator renders is read, and all that is wrong is named at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from falcon_agent import settings as agent_settings
from falcon_agent.settings import CREDENTIALS, Settings, SettingsError
from falcon_core import __version__
from falcon_core.wire.agent_config import VARIABLE, AgentConfig, encode_config
from falcon_core.wire.keys import JobKey
from tests.unit.environ import load_with

POD = {"FALCON_POD": "gpt2-0-x7kfd", "FALCON_POD_UID": "pod-uid", "FALCON_NODE": "node-a"}
CONFIG = AgentConfig(
    namespace="team",
    job="gpt2",
    job_uid="uid",
    gateways=("a:7443", "b:7443"),
    gateway_tls_dir="/nowhere",
    run_dir="/falcon/run",
)


def environ(config: AgentConfig) -> dict[str, str]:
    """Return the environment that the operator renders."""
    return {**POD, VARIABLE: encode_config(config)}


@pytest.fixture
def good(tmp_path: Path) -> AgentConfig:
    """Return what the operator hands over, with a Secret that is mounted."""
    for name in CREDENTIALS:
        (tmp_path / name).touch()
    return msgspec.structs.replace(CONFIG, gateway_tls_dir=str(tmp_path))


def load(environ: Mapping[str, str]) -> Settings:
    return load_with(environ, agent_settings.load_settings)


def test_what_the_operator_renders_is_read(good: AgentConfig) -> None:
    settings = load(environ(good))
    assert settings.config == good
    assert good.key == JobKey("team", "gpt2", "uid")
    assert (settings.pod, settings.pod_uid, settings.node) == ("gpt2-0-x7kfd", "pod-uid", "node-a")
    assert settings.log_level == "info"


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"namespace": ""}, "$.namespace"),
        ({"gateways": []}, "$.gateways"),
        ({"gateways": ["gateway"]}, "$.gateways[0]"),
        ({"gateways": ["https://gateway:7443"]}, "$.gateways[0]"),
        ({"checkpointBytes": -1}, "$.checkpointBytes"),
        ({"gatewayTlsDir": "/nowhere"}, "/nowhere/ca.crt does not exist: is the job's Secret mounted there?"),
        ({"quietHours": 3}, "unknown field `quietHours`: use an agent image of the operator's release (images.agent)"),
    ],
)
def test_a_problem_of_the_config_names_the_field_and_the_remedy(
    good: AgentConfig, changes: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load({**POD, VARIABLE: json.dumps(msgspec.to_builtins(good) | changes)})
    assert str(caught.value).startswith(f"{VARIABLE}=")
    assert remedy in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_field_that_an_older_operator_does_not_know_has_its_default(good: AgentConfig) -> None:
    older = json.dumps({key: value for key, value in msgspec.to_builtins(good).items() if key != "procs"})
    assert load({**POD, VARIABLE: older}).config == good


def test_the_environment_of_an_operator_without_the_config_is_refused_with_the_release(good: AgentConfig) -> None:
    with pytest.raises(SettingsError, match=rf"^{VARIABLE} is not set: the operator of this release \({__version__}\)"):
        load({**POD, "FALCON_NAMESPACE": "team", "FALCON_JOB": "gpt2", "FALCON_GATEWAYS": "a:7443"})


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        (VARIABLE, "", "is not set: the operator"),
        ("FALCON_NODE", " ", "is not set: the operator"),
        ("FALCON_LOG_LEVEL", "loud", "write one of debug, info, warning, error"),
    ],
)
def test_a_problem_names_the_variable_and_the_remedy(good: AgentConfig, name: str, value: str, remedy: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load({**environ(good), name: value})
    assert str(caught.value).startswith(name)
    assert remedy in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        load({"FALCON_POD": "p", "FALCON_LOG_LEVEL": "loud", VARIABLE: "{"})
    assert [line.split("=")[0].split()[0] for line in str(caught.value).splitlines()] == [
        VARIABLE,
        "FALCON_POD_UID",
        "FALCON_NODE",
        "FALCON_LOG_LEVEL",
    ]


def load_node(environ: Mapping[str, str]) -> agent_settings.NodeSettings:
    return load_with(environ, agent_settings.load_node_settings)


def test_the_nodes_daemon_needs_its_nodes_name_alone() -> None:
    settings = load_node({"FALCON_NODE": "node-a"})
    assert (settings.node, settings.sysfs, settings.errors) == ("node-a", Path("/sys"), "")


def test_what_the_nodes_daemon_cannot_use_is_named_at_once() -> None:
    with pytest.raises(SettingsError) as refused:
        load_node({"FALCON_ERRORS": '{"disabled": ["no-such-rule"]}', "FALCON_LOG_LEVEL": "loud"})
    assert "FALCON_NODE is not set: the chart sets it (nodeAgent.enabled)" in str(refused.value)
    assert "disabled[0]: no rule has the id 'no-such-rule'" in str(refused.value)
    assert "FALCON_LOG_LEVEL='loud': write one of debug, info, warning, error" in str(refused.value)
