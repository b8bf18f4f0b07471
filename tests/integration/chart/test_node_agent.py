"""The DaemonSet of the node agent; its rights and its policy are tried in tests/integration/agent/test_node.py."""

from __future__ import annotations

import json

import pytest

from falcon_agent.settings import NodeSettings
from tests.integration.chart.charts import CHART, NAMESPACE, Manifest, Rendered, helm

ON = ("--set", "nodeAgent.enabled=true")
ERRORS = {"disabled": ["xid-power"]}


def pod(chart: Rendered) -> Manifest:
    spec: Manifest = chart("DaemonSet", "falcon-node")["spec"]["template"]["spec"]
    return spec


def variables(chart: Rendered) -> dict[str, str]:
    (container,) = pod(chart)["containers"]
    return {each["name"]: each.get("value", "") for each in container["env"]}


def test_it_is_off_by_default() -> None:
    chart = Rendered()
    assert not [name for _, name in chart.objects if "falcon-node" in name and not name.startswith("falcon-nodes")]
    assert "DaemonSet" not in chart.kinds()


def test_it_runs_on_every_node_with_the_agents_image() -> None:
    chart = Rendered(*ON, "--set", "images.agent.tag=v9")
    (container,) = pod(chart)["containers"]
    assert container["image"] == "falcon/agent:v9"
    assert container["args"] == ["node"]
    assert pod(chart)["tolerations"] == [{"operator": "Exists"}]
    assert "nodeSelector" not in pod(chart)
    assert "runtimeClassName" not in pod(chart)
    assert pod(chart)["serviceAccountName"] == "falcon-node"


def test_it_writes_nothing_on_the_host() -> None:
    (container,) = pod(Rendered(*ON))["containers"]
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert "hostNetwork" not in pod(Rendered(*ON))
    assert "hostPID" not in pod(Rendered(*ON))


def test_it_may_be_held_to_some_nodes() -> None:
    flags = ("--set", "nodeAgent.nodeSelector.gpu=h200", "--set", "nodeAgent.runtimeClassName=nvidia")
    spec = pod(Rendered(*ON, *flags, "--set", "nodeAgent.priorityClassName=system-node-critical"))
    assert spec["nodeSelector"] == {"gpu": "h200"}
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["priorityClassName"] == "system-node-critical"


def test_its_settings_are_those_that_it_reads() -> None:
    given = variables(Rendered(*ON, "--set-json", f"operator.errors={json.dumps(ERRORS)}"))
    own = {name for name in given if name.startswith("FALCON_")}
    assert own <= {f"FALCON_{field.upper()}" for field in NodeSettings.model_fields}
    assert own >= {"FALCON_NODE", "FALCON_SYSFS", "FALCON_ERRORS"}


def test_pods_are_named_unless_tenants_may_not_know_of_each_other() -> None:
    assert {"FALCON_POD_UID", "FALCON_POD_LOGS"} <= set(variables(Rendered(*ON)))
    off = Rendered(*ON, "--set", "nodeAgent.namesPods=false")
    assert not {"FALCON_POD_UID", "FALCON_POD_LOGS"} & set(variables(off))
    assert "/var/log/pods" not in str(pod(off)["volumes"])


def test_operator_and_node_agent_have_the_same_table_of_errors() -> None:
    chart = Rendered(*ON, "--set-json", f"operator.errors={json.dumps(ERRORS)}")
    assert json.loads(variables(chart)["FALCON_ERRORS"])["disabled"] == ["xid-power"]
    assert variables(chart)["FALCON_ERRORS"] == chart.operator_env()["FALCON_ERRORS"]
    assert "FALCON_ERRORS" not in variables(Rendered(*ON))


@pytest.mark.parametrize(("version", "taken"), [("1.29", False), ("1.30", True)])
def test_without_its_policy_it_is_refused(version: str, taken: bool) -> None:
    done = helm("template", "falcon", str(CHART), "--namespace", NAMESPACE, "--kube-version", version, *ON)
    assert (done.returncode == 0) is taken
    assert taken or "nodeAgent.enabled is true: it needs Kubernetes 1.30" in done.stderr
