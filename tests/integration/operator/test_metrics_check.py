"""``kubectl falcon check --metrics``, the whole way: the real plugin and kubectl, a real API server, operator, gateway
and anomaly service. Only the kubelets and the agents' readings are played: real clients send the chunks with the
certificates that the operator has made for the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from falcon_core.wire.series import MAX_WINDOWS, WINDOW_SECONDS, Phase, Window, encode_chunk
from falcon_gateway import AgentClient, Pod, Tls
from tests.integration.anomaly.service_process import Service, running
from tests.integration.anomaly.test_series import WINDOWS, send
from tests.integration.api.apiserver import ApiServer, binary
from tests.integration.chart.charts import CHART
from tests.integration.gateway.gateways import Gateway, _running
from tests.integration.operator.cluster import Installation, Operator, a_job, until, until_async
from tests.integration.operator.control_plane import scheduler
from tests.integration.operator.played import add_node
from tests.integration.operator.test_life import gateway_of, name_pod, written
from tests.integration.ports import free_port

SERVICE_SECRET = "falcon-anomalies-tls"
ODD, RANKS = 1, 4
EXIT_VERDICT = 3


def falcon(api: ApiServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``kubectl falcon``: the plugin and kubectl itself are found on PATH."""
    path = f"{Path(sys.executable).parent}:{Path(binary('kubectl')).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "KUBECONFIG": str(api.kubeconfig), "HOME": str(api.work_dir)}
    command = [binary("kubectl"), "falcon", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=150)


def let(api: ApiServer, user: str, namespace: str) -> None:
    """Give a user the chart's own role ``edit`` in a namespace; no controller aggregates here."""
    roles = api.ok("helm", "template", "falcon", str(CHART), "-s", "templates/operator/user-roles.yaml")
    api.ok("kubectl", "apply", "-f", "-", stdin=roles)
    for role in ("falcon-edit", "falcon-view"):
        api.ok(
            "kubectl", "-n", namespace, "create", "rolebinding", f"{user}-{role}", f"--clusterrole={role}",
            f"--user={user}",
        )  # fmt: skip


@pytest.fixture
def placed(installation: Installation) -> Iterator[tuple[Installation, Operator, Service]]:
    """Yield an operator with a service that does not run yet, and a job whose pods are placed."""
    service_tls = installation.folder / SERVICE_SECRET
    port = free_port()
    with scheduler(installation.api):
        for name in ("node-a", "node-b", "node-c", "node-d"):
            add_node(installation, name, {})
        operator = installation.operator(
            "op-a",
            FALCON_GATEWAYS="falcon-gateway.falcon.svc:7443",
            FALCON_ANOMALY_SERVICE=f"localhost:{port}",
        )
        installation.start_etcd()
        until(lambda: installation.get("secret", SERVICE_SECRET))
        service = Service(
            installation.folder, service_tls, "", gateway_name="falcon-gateway.falcon.svc", FALCON_PORT=str(port)
        )
        service.port = port
        installation.apply(a_job(installation.namespace, replicas=RANKS))
        until(lambda: state(installation) == "Starting")
        yield installation, operator, service


def state(installation: Installation) -> str:
    found = installation.get("trainingjob", "gpt2")
    return str(found.get("status", {}).get("state", "")) if found else ""


@contextlib.asynccontextmanager
async def agents(installation: Installation, gateway: Gateway) -> AsyncIterator[list[AgentClient]]:
    """Run a client for each pod of the job, in the order of its ranks."""
    shown = written(installation, "gpt2-falcon-gateway")
    tls = Tls(shown / "ca.crt", shown / "tls.crt", shown / "tls.key", "falcon-gateway.falcon.svc")
    pods = [pod for pod in installation.get("pods") if "falcon.dev/replica" in pod["metadata"]["labels"]]
    pods.sort(key=lambda pod: int(pod["metadata"]["labels"]["falcon.dev/replica"]))
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for pod in pods:
            meta = pod["metadata"]
            client = AgentClient([gateway.agents], tls, Pod(meta["namespace"], "gpt2", meta["uid"]), lambda _: None)
            await stack.enter_async_context(_running(client.run()))
            clients.append(client)
        yield clients


async def send_history(clients: list[AgentClient], service: Service) -> None:
    """Send eleven minutes, in whose newest four one rank is throttled."""
    for number in range(WINDOWS // MAX_WINDOWS):
        await send({client: chunk(rank, number) for rank, client in enumerate(clients)}, service)


def chunk(rank: int, number: int) -> bytes:
    """Return a rank's chunk of that number, as if its windows had been read before."""
    first = number * MAX_WINDOWS
    age = round((WINDOWS - first - MAX_WINDOWS) * WINDOW_SECONDS * 1e3)
    odd = (rank == ODD and first + window >= WINDOWS - 24 for window in range(MAX_WINDOWS))
    throttled = [Window(each, each, each) for each in (0.6 if one else 0.01 for one in odd)]
    series = {rank: {"cpu_throttled": throttled, "cpu": [Window(1.0, 0.9, 1.1)] * MAX_WINDOWS}}
    return encode_chunk(series, [Phase.TRAINING] * MAX_WINDOWS, generation=1, number=number, age_ms=age)


@pytest.mark.timeout(400)
async def test_the_owner_sees_the_odd_rank_and_another_tenant_nothing(
    placed: tuple[Installation, Operator, Service], tmp_path: Path
) -> None:
    installation, operator, service = placed
    api, team = installation.api, installation.namespace
    written(installation, SERVICE_SECRET)
    with gateway_of(installation) as gateway:
        name_pod(installation, gateway)
        service._environment["FALCON_GATEWAYS"] = gateway.operator
        with running(service):
            await until_async(lambda: operator.metric("falcon_gateways_streaming") == 1.0)
            async with agents(installation, gateway) as clients:
                await send_history(clients, service)
                looked = service.metric("falcon_anomaly_looks_total") or 0.0
                await until_async(lambda: (service.metric("falcon_anomaly_looks_total") or 0.0) >= looked + 2)
                let(api, "owner", team)
                command = ("check", "gpt2", "--metrics", "--since", "10m", "-n", team)
                picture = tmp_path / "map.png"
                shown = await asyncio.to_thread(falcon, api, *command, "--as", "owner", "--png", str(picture))

                # A tenant with every right on jobs of another namespace.
                api.ok("kubectl", "create", "namespace", f"{team}-other")
                let(api, "stranger", f"{team}-other")
                refused = await asyncio.to_thread(falcon, api, *command, "--as", "stranger")
                asked = api.run(
                    "kubectl", "-n", team, "annotate", "ftj", "gpt2", "falcon.dev/check-metrics=x", "--overwrite",
                    "--as", "stranger",
                )  # fmt: skip
                read = api.run("kubectl", "-n", team, "get", "ftj", "gpt2", "-o", "json", "--as", "stranger")
                overviews = service.metric("falcon_anomaly_overviews_total")
    assert shown.returncode == EXIT_VERDICT, shown.stdout + shown.stderr
    row = next(line.split() for line in shown.stdout.splitlines() if line.startswith("cpu_throttled  "))
    assert row[1] == str(ODD)
    assert row[2] == node_of(installation, ODD)
    assert row[3] == "differs"
    ranks = [line for line in shown.stdout.splitlines() if line.startswith(f"rank {ODD} |")]
    assert any("@" in line for line in ranks), shown.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert refused.returncode == 1
    assert f"you may not get trainingjobs.falcon.dev in namespace {team}" in refused.stderr
    assert "cpu_throttled" not in refused.stdout + refused.stderr
    assert [asked.returncode, read.returncode] == [1, 1]
    assert "forbidden" in asked.stderr.lower()
    assert "forbidden" in read.stderr.lower()
    assert overviews == 1.0, "the stranger's questions never reached the service"
    status: dict[str, Any] = installation.get("trainingjob", "gpt2")["status"]["metricsCheck"]
    assert status["maps"][0]["metric"] == "cpu_throttled"


def node_of(installation: Installation, replica: int) -> str:
    pods = installation.get("pods")
    (found,) = (pod for pod in pods if pod["metadata"]["labels"].get("falcon.dev/replica") == str(replica))
    return str(found["spec"]["nodeName"])


def test_a_service_that_is_away_is_said_to_the_user(placed: tuple[Installation, Operator, Service]) -> None:
    installation, _, _ = placed
    done = falcon(installation.api, "check", "gpt2", "--metrics", "-n", installation.namespace)
    assert done.returncode == 1
    assert "the anomaly service does not answer" in done.stderr
