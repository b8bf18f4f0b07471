"""The node's daemon with a real kube-apiserver, the chart's rights and policy, and this machine's kernel log.

Its token is what a pod of the DaemonSet gets: bound to a pod on the node. No kubelet runs. What the kernel has said is
not known here, and no test can make it write a record: tests/unit/agent/node judges lines.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from falcon_agent.node import kmsg
from falcon_agent.node.api import NodeApi, Refused
from falcon_agent.node.conditions import HEARTBEAT_SECONDS, LOOK_SECONDS, Keeper
from falcon_agent.node.problems import GPU, LINK, NODE, TYPES, Problems, Seen
from falcon_core.errors.judge import shipped_judge
from tests.integration.api.apiserver import ApiServer, running_apiserver
from tests.integration.chart.charts import CHART, NAMESPACE

ACCOUNT = "falcon-node"
BOOT = "1c274359-aaaa-4bbb-8ccc-1234567890ab"
POLICY_TIMEOUT_SECONDS = 60.0
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
T = 1_700_000_000.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[ApiServer]:
    """Yield the chart with the node agent, and two nodes; the policy takes effect a moment after its installation."""
    with running_apiserver() as server:
        install = ("helm", "install", "falcon", str(CHART), "-n", NAMESPACE, "--create-namespace")
        server.ok(*install, "--set", "nodeAgent.enabled=true")
        for name in ("worker", "other"):
            make_node(server, name)
        unbound = NodeApi("worker", account(server, server.work_dir / "unbound"), address(server))
        deadline = time.monotonic() + POLICY_TIMEOUT_SECONDS
        while True:
            try:
                unbound.write([condition("FalconNodeProblem")])
            except Refused as refusal:
                if "own node alone" in str(refusal):
                    break
            assert time.monotonic() < deadline, "the policy takes no effect"
            time.sleep(0.2)
        yield server


def make_node(server: ApiServer, name: str) -> None:
    metadata = {"name": name, "labels": {"gpu": "h200"}}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"conditions": [READY]}}
    server.ok("kubectl", "create", "-f", "-", stdin=json.dumps(node))


def address(server: ApiServer) -> dict[str, str]:
    """Return the variables that Kubernetes sets in a pod."""
    url = urlsplit(server.url)
    return {"KUBERNETES_SERVICE_HOST": url.hostname or "", "KUBERNETES_SERVICE_PORT": str(url.port)}


def account(server: ApiServer, folder: Path, *bound: str) -> Path:
    """Make the folder that a kubelet would mount."""
    folder.mkdir()
    (folder / "token").write_text(server.ok("kubectl", "create", "token", ACCOUNT, "-n", NAMESPACE, *bound))
    (folder / "ca.crt").write_bytes(server.ca_file.read_bytes())
    return folder


def bound_account(server: ApiServer, folder: Path, node: str) -> Path:
    """Make a pod of the DaemonSet on the node, and return the folder of its own token."""
    name = f"falcon-node-{uuid.uuid4()}"
    spec = {"nodeName": node, "serviceAccountName": ACCOUNT, "containers": [{"name": "c", "image": "x"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}
    server.ok("kubectl", "create", "-f", "-", stdin=json.dumps(pod))
    return account(server, folder, "--bound-object-kind", "Pod", "--bound-object-name", name)


def condition(kind: str, status: str = "False") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": "NoProblem", "message": ""}


def conditions(server: ApiServer, node: str) -> dict[str, dict[str, Any]]:
    read = json.loads(server.ok("kubectl", "get", "node", node, "-o", "json"))
    return {each["type"]: each for each in read["status"]["conditions"]}


@pytest.fixture
def node(cluster: ApiServer) -> str:
    """Make a node for one test."""
    name = f"node-{uuid.uuid4()}"
    make_node(cluster, name)
    return name


@pytest.fixture
def api(cluster: ApiServer, node: str, tmp_path: Path) -> NodeApi:
    """Return the node as its own daemon reaches it."""
    return NodeApi(node, bound_account(cluster, tmp_path / "account", node), address(cluster))


def test_a_problem_is_written_and_refreshed_and_ends(cluster: ApiServer, node: str, api: NodeApi) -> None:
    problems = Problems(shipped_judge(), BOOT)
    keeper = Keeper(api, problems)
    keeper.keep(T)
    found = conditions(cluster, node)
    assert {found[kind]["status"] for kind in TYPES} == {"False"}
    assert {found[kind]["reason"] for kind in TYPES} == {"NoProblem"}
    assert found["Ready"].items() >= READY.items()

    problems.see([Seen("LinkFlapping", "mlx5_0/1: the port is down", T + 7)])
    keeper.keep(T + 8)
    link = conditions(cluster, node)[LINK]
    assert (link["status"], link["reason"]) == ("True", "LinkFlapping")
    assert link["message"] == "mlx5_0/1: the port is down [boot 1c274359]"
    assert link["lastTransitionTime"] == "2023-11-14T22:13:28Z"

    keeper.keep(T + HEARTBEAT_SECONDS)
    link = conditions(cluster, node)[LINK]
    assert link["lastHeartbeatTime"] == "2023-11-14T22:18:20Z"
    assert link["lastTransitionTime"] == "2023-11-14T22:13:28Z"

    keeper.keep(T + 3600)
    link = conditions(cluster, node)[LINK]
    assert (link["status"], link["reason"], link.get("message", "")) == ("False", "NoProblem", "")
    assert link["lastTransitionTime"] == "2023-11-14T23:13:20Z"


def test_nothing_is_written_while_nothing_changes(cluster: ApiServer, node: str, api: NodeApi) -> None:
    keeper = Keeper(api, Problems(shipped_judge(), BOOT))
    keeper.keep(T)
    before = cluster.ok("kubectl", "get", "node", node, "-o", "jsonpath={.metadata.resourceVersion}")
    for seconds in (5, 65, HEARTBEAT_SECONDS - 1):
        keeper.keep(T + seconds)
    assert cluster.ok("kubectl", "get", "node", node, "-o", "jsonpath={.metadata.resourceVersion}") == before


@pytest.mark.parametrize("by", ["status", "removal"])
def test_a_person_declares_it_to_be_over(cluster: ApiServer, node: str, api: NodeApi, by: str) -> None:
    problems = Problems(shipped_judge(), BOOT)
    keeper = Keeper(api, problems)
    problems.see([Seen("EccError", "a", T)])
    keeper.keep(T + 1)
    assert conditions(cluster, node)[GPU]["status"] == "True"
    change = {"type": GPU, "status": "False"} if by == "status" else {"type": GPU, "$patch": "delete"}
    patch = json.dumps({"status": {"conditions": [change]}})
    cluster.ok("kubectl", "patch", "node", node, "--subresource=status", "--type=strategic", "-p", patch)
    keeper.keep(T + 2 + LOOK_SECONDS)
    gpu = conditions(cluster, node)[GPU]
    assert (gpu["status"], gpu["reason"]) == ("False", "NoProblem")
    keeper.keep(T + 3 + LOOK_SECONDS)
    assert conditions(cluster, node)[GPU]["status"] == "False"
    problems.see([Seen("EccError", "again", T + 4 + LOOK_SECONDS)])
    keeper.keep(T + 5 + LOOK_SECONDS)
    assert conditions(cluster, node)[GPU]["status"] == "True"


@pytest.mark.parametrize(("boot", "status"), [(BOOT, "True"), (BOOT.replace("1c", "2d"), "False")])
def test_a_new_daemon_keeps_what_this_boot_has_shown(
    cluster: ApiServer, node: str, api: NodeApi, boot: str, status: str
) -> None:
    problems = Problems(shipped_judge(), BOOT)
    problems.see([Seen("EccError", "a", T)])
    Keeper(api, problems).keep(T)
    Keeper(api, Problems(shipped_judge(), boot)).keep(T + 5000)
    assert conditions(cluster, node)[GPU]["status"] == status


def test_a_server_that_does_not_answer_is_asked_again(cluster: ApiServer, node: str, tmp_path: Path) -> None:
    folder = tmp_path / "account"
    folder.mkdir()
    keeper = Keeper(NodeApi(node, folder, address(cluster)), Problems(shipped_judge(), BOOT))
    keeper.keep(T)
    folder.rmdir()
    bound_account(cluster, folder, node)  # the kubelet renews a token in place
    keeper.keep(T + 1)
    assert GPU not in conditions(cluster, node)
    keeper.keep(T + 2)
    assert conditions(cluster, node)[GPU]["status"] == "False"


@pytest.mark.parametrize(
    "change",
    [
        {"conditions": [condition("Ready")]},
        {"conditions": [condition("NetworkUnavailable", "True")]},
        {"conditions": [{"type": "Ready", "$patch": "delete"}]},
        {"capacity": {"nvidia.com/gpu": "8"}},
        {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]},
    ],
    ids=json.dumps,
)
def test_a_daemon_writes_nothing_else_of_its_nodes_status(
    cluster: ApiServer, tmp_path: Path, change: dict[str, Any]
) -> None:
    refusal = patch(cluster, bound_account(cluster, tmp_path / "account", "worker"), "worker", {"status": change})
    assert "Falcon's node agent may change" in refusal


@pytest.mark.parametrize("change", [{"labels": {"gpu": None}}, {"annotations": {"a": "b"}}], ids=json.dumps)
def test_a_daemon_writes_no_label_by_way_of_the_status(
    cluster: ApiServer, tmp_path: Path, change: dict[str, Any]
) -> None:
    folder = bound_account(cluster, tmp_path / "account", "worker")
    assert "metadata: Falcon's node agent may not change it" in patch(cluster, folder, "worker", {"metadata": change})


def test_a_daemon_writes_no_other_node(cluster: ApiServer, tmp_path: Path) -> None:
    folder = bound_account(cluster, tmp_path / "account", "worker")
    own = {"status": {"conditions": [condition(NODE)]}}
    assert patch(cluster, folder, "worker", own) == ""
    assert "may write the status of its own node alone" in patch(cluster, folder, "other", own)


def test_a_daemon_has_no_other_right(cluster: ApiServer) -> None:
    user = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
    listed = cluster.ok("kubectl", "auth", "can-i", "--list", "--as", user, "--no-headers")
    own = [line.split() for line in listed.splitlines() if line.startswith(("nodes", "pods", "secrets", "*"))]
    assert sorted((line[0], line[-1]) for line in own) == [("nodes", "[get]"), ("nodes/status", "[patch]")]


def test_other_users_write_a_nodes_status_as_before(cluster: ApiServer) -> None:
    change = json.dumps({"status": {"conditions": [condition("NetworkUnavailable")], "capacity": {"x.org/y": "1"}}})
    command = ("kubectl", "patch", "node", "other", "--subresource=status", "--type=strategic", "--dry-run=server")
    cluster.ok(*command, "-p", change)


def patch(cluster: ApiServer, folder: Path, name: str, change: dict[str, Any]) -> str:
    """Return the refusal of a change of the node's status with the token in the folder, on trial; empty for none."""
    api = NodeApi(name, folder, address(cluster))
    try:
        api._call("PATCH", f"/api/v1/nodes/{name}/status?dryRun=All", msgspec.json.encode(change))
    except Refused as refusal:
        return str(refusal)
    return ""


def test_this_machines_kernel_log_is_read() -> None:
    log = kmsg.Log(look_back=time.monotonic())
    try:
        records = log.read()
        assert all(record.of_kernel and record.text for record in records)
        sequences = [record.sequence for record in records]
        assert sequences == sorted(sequences)
        with kmsg.DEVICE.open("wb", buffering=0) as device:
            device.write(b"<0>falcon's test: written by a process\n")
        assert log.wait(60)
        assert not [record for record in log.read() if "written by a process" in record.text]
    finally:
        log.close()


def test_the_daemon_writes_the_conditions_of_its_node(cluster: ApiServer, node: str, tmp_path: Path) -> None:
    """The whole process, with this machine's kernel log, links and GPUs, whatever they say."""
    folder = bound_account(cluster, tmp_path / "account", node)
    environment = {**os.environ, **address(cluster), "FALCON_NODE": node, "FALCON_ACCOUNT": str(folder)}
    command = (sys.executable, "-m", "falcon_agent", "node")
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as daemon:
        try:
            deadline = time.monotonic() + 120
            while not conditions(cluster, node).keys() >= set(TYPES):
                assert daemon.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.2)
        finally:
            daemon.send_signal(signal.SIGTERM)
            said, _ = daemon.communicate(timeout=60)
    assert daemon.returncode == 0, said
    events = [json.loads(line)["event"] for line in said.splitlines()]
    assert events.count("condition") == len(TYPES)
