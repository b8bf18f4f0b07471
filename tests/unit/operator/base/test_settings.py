"""Settings: what the chart sets is read, what is wrong is named with its remedy, all at once."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from falcon_operator.base import settings as operator_settings
from falcon_operator.base.ports import RunAs
from falcon_operator.base.settings import Settings, SettingsError
from tests.unit.environ import load_with

GOOD = {
    "FALCON_NAMESPACE": "falcon-system",
    "FALCON_POD": "falcon-7d9-abc",
    "FALCON_ETCD_ENDPOINTS": "https://falcon-etcd.falcon-system.svc:2379",
    "FALCON_ETCD_SECRET_PREFIX": "falcon-etcd",
    "FALCON_ETCD_SERVER_NAMES": "falcon-etcd.falcon-system.svc, localhost",
    "FALCON_GATEWAY_SELECTOR": "app.kubernetes.io/component=gateway",
    "FALCON_GATEWAYS": "falcon-gateway.falcon-system.svc:7443",
    "FALCON_GATEWAY_SECRET_PREFIX": "falcon",
    "FALCON_AGENT_IMAGE": "falcon/agent:0.1.0",
}


def load(environ: Mapping[str, str]) -> Settings:
    return load_with(environ, operator_settings.load)


def test_defaults() -> None:
    settings = load(GOOD)
    assert settings.identity == "falcon-7d9-abc"
    assert settings.etcd_managed
    assert settings.etcd_server_names == ("falcon-etcd.falcon-system.svc", "localhost")
    assert settings.watch_namespaces == ()
    assert (settings.fence_limit, settings.fence_window_seconds) == (2, 3600)
    assert settings.etcd_retention_seconds is None
    assert settings.spare_annotations == {}
    assert (settings.log_level, settings.metrics_port) == ("info", 8080)
    assert settings.gateway_names == ("falcon-gateway.falcon-system.svc",)
    assert settings.pods.gateways == "falcon-gateway.falcon-system.svc:7443"


def test_everything_set() -> None:
    settings = load(
        {
            **GOOD,
            "FALCON_IDENTITY": "me",
            "FALCON_ETCD_ENDPOINTS": "https://a:1,https://b:2",
            "FALCON_ETCD_MANAGED": "False",
            "FALCON_ETCD_RETENTION_SECONDS": "90",
            "FALCON_ETCD_SERVER_NAMES": "",
            "FALCON_GATEWAY_SELECTOR": "app.kubernetes.io/component=gateway",
            "FALCON_GATEWAYS": "a:1, b:2,a:3",
            "FALCON_AGENT_IMAGE_PULL_POLICY": "Always",
            "FALCON_WATCH_NAMESPACES": "a, b,",
            "FALCON_DEPARTURE_TAINTS": "spot/notice,a.example/going",
            "FALCON_FENCE_LIMIT": "0",
            "FALCON_FENCE_WINDOW_SECONDS": "60",
            "FALCON_LOG_LEVEL": "DEBUG",
            "FALCON_INJECTED": '{"agent":{"resources":{"limits":{"cpu":1}}},"install":{"resources":{}}}',
            "FALCON_SPARE_ANNOTATIONS": '{"karpenter.sh/do-not-disrupt":"true"}',
            "FALCON_RUN_AS": '{"runAsUser":7}',
            "FALCON_ERRORS": "{disabled: [python]}",
            "FALCON_METRICS_PORT": "9090",
            "FALCON_GPU_SERIES": "true",
        }
    )
    assert settings.identity == "me"
    assert settings.pods.run_as == RunAs(run_as_user=7)
    assert not settings.etcd_managed
    assert settings.etcd_endpoints == ("https://a:1", "https://b:2")
    assert settings.etcd_retention_seconds == 90
    assert settings.gateways == ("a:1", "b:2", "a:3")
    assert settings.gateway_names == ("a", "b")
    assert settings.pods.gateways == "a:1,b:2,a:3"
    assert settings.agent_image_pull_policy == "Always"
    assert settings.watch_namespaces == ("a", "b")
    assert (settings.fence_limit, settings.fence_window_seconds) == (0, 60)
    assert (settings.log_level, settings.metrics_port) == ("debug", 9090)
    assert settings.pods.error_overrides == "{disabled: [python]}"
    assert settings.pods.injected.agent.resources.limits == {"cpu": 1}
    assert settings.pods.gpu_series
    assert settings.pods.departure_taints == ("spot/notice", "a.example/going")
    assert settings.spare_annotations == {"karpenter.sh/do-not-disrupt": "true"}


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("FALCON_NAMESPACE", "", "is not set: set it"),
        ("FALCON_NAMESPACE", "  ", "is not set: set it"),
        ("FALCON_ETCD_ENDPOINTS", "", "is not set: set it"),
        ("FALCON_ETCD_ENDPOINTS", ",", "write https://host:port"),
        ("FALCON_ETCD_ENDPOINTS", "falcon-etcd:2379", "is not https://host:port"),
        ("FALCON_ETCD_ENDPOINTS", "http://falcon-etcd:2379", "is not https://host:port"),
        ("FALCON_ETCD_SERVER_NAMES", "", "is not set: set it"),
        ("FALCON_ETCD_MANAGED", "yes", "write true or false"),
        ("FALCON_ETCD_RETENTION_SECONDS", "1m", "write a whole number of seconds"),
        ("FALCON_GATEWAYS", "", "is not set: set it"),
        ("FALCON_GATEWAYS", ",", "write host:port, several separated by commas"),
        ("FALCON_GATEWAYS", "falcon-gateway", "write host:port"),
        ("FALCON_GATEWAYS", "https://falcon-gateway:7443", "write host:port"),
        ("FALCON_GATEWAYS", "a:1,b:70000", "write host:port"),
        ("FALCON_GATEWAY_SECRET_PREFIX", "", "is not set: set it"),
        ("FALCON_ANOMALY_SERVICE", "falcon-anomalies", "write host:port"),
        ("FALCON_FENCE_LIMIT", "-1", "write a whole number from 0"),
        ("FALCON_FENCE_WINDOW_SECONDS", "1h", "write a whole number from 1"),
        ("FALCON_ERRORS", "rules: [", "not YAML in line 2: did not find"),
        ("FALCON_ERRORS", "disabled: [a]", "disabled[0]: no rule has the id 'a'; docs/errors.md lists them"),
        ("FALCON_ERRORS", "#" * 40000, "has 40000 bytes; at most 32768: join patterns with |"),
        ("FALCON_INJECTED", '{"agent":{"resources":{"limits":{"cpu":"much"}}}}', "cpu: 'much' is not a quantity"),
        ("FALCON_SPARE_ANNOTATIONS", '{"a.b/c":true}', "Expected `str`, got `bool`"),
        ("FALCON_SPARE_ANNOTATIONS", '{"idle":"true"}', "'idle' is not <domain>/<name>"),
        ("FALCON_SPARE_ANNOTATIONS", '{"falcon.dev/x":"true"}', "'falcon.dev/x' is not <domain>/<name>"),
        ("FALCON_SPARE_ANNOTATIONS", '{"a.b/c":"1,d=2"}', "a.b/c: '1,d=2' is not 1 to 63 letters"),
        ("FALCON_RUN_AS", '{"runAsUser":0}', "runAsUser: 0 is root: name another user, or leave it out"),
        ("FALCON_RUN_AS", '{"user":7}', "Object contains unknown field `user`"),
        ("FALCON_INJECTED", '{"agent":7}', "Expected `object`, got `int` - at `$.agent`"),
        ("FALCON_LOG_LEVEL", "chatty", "write one of debug, info, warning, error"),
        ("FALCON_AGENT_IMAGE_PULL_POLICY", "always", "write one of Always, IfNotPresent, Never"),
        ("FALCON_METRICS_PORT", "70000", "write a whole number from 0 to 65535"),
    ],
)
def test_a_problem_names_the_variable_and_the_remedy(name: str, value: str, remedy: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load({**GOOD, name: value})
    assert str(caught.value).startswith(name)
    assert remedy in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        load({"FALCON_FENCE_LIMIT": "many"})
    named = [line.split("=")[0].split()[0] for line in str(caught.value).splitlines()]
    assert named == [
        "FALCON_NAMESPACE",
        "FALCON_POD",
        "FALCON_ETCD_ENDPOINTS",
        "FALCON_ETCD_SECRET_PREFIX",
        "FALCON_ETCD_SERVER_NAMES",
        "FALCON_GATEWAYS",
        "FALCON_GATEWAY_SELECTOR",
        "FALCON_GATEWAY_SECRET_PREFIX",
        "FALCON_AGENT_IMAGE",
        "FALCON_FENCE_LIMIT",
    ]
