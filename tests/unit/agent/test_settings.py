"""The agent's settings: what the operator renders is read, and all that is wrong is named at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from falcon_agent import settings as agent_settings
from falcon_agent.settings import CREDENTIALS, Settings, SettingsError
from falcon_core.wire.keys import JobKey
from tests.unit.environ import load_with

GOOD = {
    "FALCON_NAMESPACE": "team",
    "FALCON_JOB": "gpt2",
    "FALCON_JOB_UID": "uid",
    "FALCON_POD": "gpt2-0-x7kfd",
    "FALCON_POD_UID": "pod-uid",
    "FALCON_NODE": "node-a",
    "FALCON_GATEWAYS": "a:7443, b:7443",
}


@pytest.fixture
def good(tmp_path: Path) -> dict[str, str]:
    """Return an environment whose Secret is mounted."""
    for name in CREDENTIALS:
        (tmp_path / name).touch()
    return {**GOOD, "FALCON_GATEWAY_TLS_DIR": str(tmp_path)}


def load(environ: Mapping[str, str]) -> Settings:
    return load_with(environ, agent_settings.load_settings)


def test_what_the_operator_renders_is_read(good: dict[str, str], tmp_path: Path) -> None:
    settings = load({**good, "FALCON_RUN_DIR": "/run/x"})
    assert settings.job == JobKey("team", "gpt2", "uid")
    assert settings.gateways == ("a:7443", "b:7443")
    assert (settings.gateway_tls_dir, settings.run_dir, settings.log_level) == (tmp_path, Path("/run/x"), "info")


def test_defaults(good: dict[str, str]) -> None:
    assert load(good).run_dir == Path("/falcon/run")


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("FALCON_JOB", "", "is not set: the operator sets it"),
        ("FALCON_NODE", " ", "is not set: the operator sets it"),
        ("FALCON_GATEWAYS", "gateway", "write host:port"),
        ("FALCON_GATEWAYS", "https://gateway:7443", "write host:port"),
        ("FALCON_GATEWAY_TLS_DIR", "/nowhere", "/nowhere/ca.crt does not exist: is the job's Secret mounted there?"),
        ("FALCON_LOG_LEVEL", "loud", "write one of debug, info, warning, error"),
    ],
)
def test_a_problem_names_the_variable_and_the_remedy(good: dict[str, str], name: str, value: str, remedy: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load({**good, name: value})
    assert str(caught.value).startswith(name)
    assert remedy in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        load({"FALCON_POD": "p", "FALCON_LOG_LEVEL": "loud", "FALCON_GATEWAYS": "gateway"})
    assert [line.split("=")[0].split()[0] for line in str(caught.value).splitlines()] == [
        "FALCON_NAMESPACE",
        "FALCON_JOB",
        "FALCON_JOB_UID",
        "FALCON_POD_UID",
        "FALCON_NODE",
        "FALCON_GATEWAYS",
        "FALCON_GATEWAY_TLS_DIR",
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
