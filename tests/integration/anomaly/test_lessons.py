"""Learned limits, the whole way: a real API server with the chart's rights, operator, gateway and anomaly service, and
the plugin. Real clients send the chunks. What an operator and its service learn takes hours, so a version is there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from falcon_anomaly.learning import document
from falcon_anomaly.learning.document import Kind
from falcon_anomaly.learning.limits import scale
from falcon_core.job_kind import kind_of
from falcon_core.wire.lessons import MAX_MODELS_BYTES, JobLesson, Lesson, decode_learned, encode_lesson
from falcon_core.wire.series import MAX_WINDOWS, WINDOW_SECONDS, Phase, Window, encode_chunk
from falcon_gateway import AgentClient
from falcon_operator.base.ports import Conflict, Rejected
from falcon_operator.cluster.model_map import ModelMap
from falcon_operator.cluster.transport import Transport, load_configuration
from falcon_operator.runtime.anomaly_verdicts import post
from tests.integration.anomaly.service_process import Service, issue, running, shown_by
from tests.integration.anomaly.test_series import WINDOWS, send
from tests.integration.api.apiserver import ApiServer
from tests.integration.chart.charts import Rendered
from tests.integration.operator.authority import Authority
from tests.integration.operator.cluster import Installation, Operator, a_job, until, until_async
from tests.integration.operator.conftest import api, installation
from tests.integration.operator.control_plane import scheduler
from tests.integration.operator.played import add_node
from tests.integration.operator.rights import install_rights, kubeconfig_of, remove_rights
from tests.integration.operator.test_life import gateway_of, name_pod, written
from tests.integration.operator.test_metrics_check import EXIT_VERDICT, agents, falcon
from tests.integration.ports import free_port

__all__ = ["api", "installation"]

SECRET, MODELS = "falcon-anomalies-tls", "falcon-anomaly-models"
LEARNING = ("--set", "anomalies.enabled=true")
ODD, RANKS = 1, 4
SMALL = 0.035  # throttled: below the shipped floor of 0.05, and above half of it


def learned(day: int = 1) -> Kind:
    limits = {"cpu_throttled": (50, 50), "cpu": (50, 50)}
    return Kind(scale=scale(), version=4, learned=day, used=day, limits=dict(limits))


def chunk(rank: int, number: int) -> bytes:
    """Return a rank's chunk of eleven minutes, in whose newest four one rank is throttled a little."""
    first = number * MAX_WINDOWS
    age = round((WINDOWS - first - MAX_WINDOWS) * WINDOW_SECONDS * 1e3)
    odd = (rank == ODD and first + window >= WINDOWS - 24 for window in range(MAX_WINDOWS))
    throttled = [Window(each, each, each) for each in (SMALL if one else 0.0 for one in odd)]
    series = {rank: {"cpu_throttled": throttled, "cpu": [Window(1.0, 0.9, 1.1)] * MAX_WINDOWS}}
    return encode_chunk(series, [Phase.TRAINING] * MAX_WINDOWS, generation=1, number=number, age_ms=age)


async def send_history(clients: list[AgentClient], service: Service) -> None:
    for number in range(WINDOWS // MAX_WINDOWS):
        await send({client: chunk(rank, number) for rank, client in enumerate(clients)}, service)


def config_map(home: str) -> dict[str, Any]:
    """Return the ConfigMap as the chart makes it in this namespace."""
    made = Rendered("--namespace", home, *LEARNING)("ConfigMap", MODELS)
    made["metadata"]["namespace"] = home
    return made


@pytest.fixture
def placed(installation: Installation, tmp_path: Path) -> Iterator[tuple[Installation, Operator, Service]]:
    """Yield an operator under the chart's rights, a service that does not run yet, and a job whose pods are placed."""
    api, home = installation.api, installation.namespace
    install_rights(api, home, *LEARNING, "--set", f"operator.watchNamespaces={{{home}}}")
    installation.apply(config_map(home))
    port = free_port()
    with scheduler(api):
        for name in ("node-a", "node-b", "node-c", "node-d"):
            add_node(installation, name, {})
        operator = installation.operator(
            "op-a",
            KUBECONFIG=str(kubeconfig_of(api, home, tmp_path)),
            FALCON_GATEWAYS="falcon-gateway.falcon.svc:7443",
            FALCON_ANOMALY_SERVICE=f"localhost:{port}",
            FALCON_ANOMALY_MODELS=MODELS,
        )
        installation.start_etcd()
        until(lambda: installation.get("secret", SECRET))
        service = Service(
            installation.folder,
            installation.folder / SECRET,
            "",
            gateway_name="falcon-gateway.falcon.svc",
            FALCON_PORT=str(port),
        )
        service.port = port
        installation.apply(a_job(home, replicas=RANKS))
        until(lambda: state(installation).get("state") == "Starting")
        yield installation, operator, service
    remove_rights(api)


def state(installation: Installation) -> dict[str, Any]:
    found = installation.get("trainingjob", "gpt2")
    return dict(found.get("status", {})) if found else {}


def stored(installation: Installation) -> dict[str, str]:
    return dict(installation.get("configmap", MODELS).get("data") or {})


def store(installation: Installation, data: dict[str, str | None]) -> None:
    installation.api.ok(
        "kubectl", "-n", installation.namespace, "patch", "configmap", MODELS, "--type=merge", "-p",
        json.dumps({"data": data}),
    )  # fmt: skip


@pytest.mark.slow  # three minutes; unit/anomalies/service/test_jobs has lessons that lower limits
@pytest.mark.timeout(500)
async def test_a_job_is_judged_by_what_its_kind_has_learned(placed: tuple[Installation, Operator, Service]) -> None:
    installation, operator, service = placed
    home = installation.namespace
    kind = kind_of(home, installation.get("trainingjob", "gpt2")["spec"])
    written(installation, SECRET)
    with gateway_of(installation) as gateway:
        name_pod(installation, gateway)
        service._environment["FALCON_GATEWAYS"] = gateway.operator
        with running(service):
            await until_async(lambda: operator.metric("falcon_gateways_streaming") == 1.0)
            async with agents(installation, gateway) as clients:
                await send_history(clients, service)
                lessons = await lesson_after(service, service.metric("falcon_anomaly_lessons_total") or 0.0)
                check = ("check", "gpt2", "--metrics", "-n", home)
                before = await asyncio.to_thread(falcon, installation.api, *check)
                assert stored(installation) == {}, "nothing is learned before half an hour"

                store(installation, {kind: document.encode(learned()), "README": "ours"})
                await lesson_after(service, lessons)
                looked = service.metric("falcon_anomaly_looks_total") or 0.0
                await until_async(lambda: (service.metric("falcon_anomaly_looks_total") or 0.0) >= looked + 2)
                after = await asyncio.to_thread(falcon, installation.api, *check)
                # The job was seen today, and the operator has written so: what others have put there is still there.
                await until_async(lambda: document.decode(stored(installation)[kind]).used > 1)
                shown = await asyncio.to_thread(
                    falcon, installation.api, "anomalies", "gpt2", "--models", "-n", home, "--falcon-namespace", home
                )
                every = await asyncio.to_thread(
                    falcon, installation.api, "anomalies", "--models", "-n", home, "--falcon-namespace", home
                )
                store(installation, {kind: '{"format":1,"limits":"none"}'})
                await until_async(lambda: (service.metric("falcon_anomaly_kinds_damaged_total") or 0.0) > 0)
                await until_async(lambda: kind not in stored(installation))
    assert before.returncode == 0, f"the shipped limits name a rank: {before.stdout}{before.stderr}"
    assert after.returncode == EXIT_VERDICT, after.stdout + after.stderr
    row = next(line.split() for line in after.stdout.splitlines() if line.startswith("cpu_throttled  "))
    assert (row[1], row[3]) == (str(ODD), "differs")
    assert stored(installation) == {"README": "ours"}
    assert f"{home}/gpt2 is a job of kind {kind}" in shown.stdout, shown.stderr
    assert "cpu_throttled  50 %        50 %" in shown.stdout
    (line,) = (line.split() for line in every.stdout.splitlines() if line.startswith(f"{kind} "))
    assert (line[1], line[-1]) == ("4", f"{home}/gpt2"), every.stdout
    assert "orbidden" not in operator.log.read_text()


async def lesson_after(service: Service, many: float) -> float:
    """Wait for the lesson that follows so many. Return how many there have been."""
    await until_async(lambda: (service.metric("falcon_anomaly_lessons_total") or 0.0) > many)
    return service.metric("falcon_anomaly_lessons_total") or 0.0


@pytest.fixture
async def shelf(installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Yield the operator's hand on the ConfigMap, under the chart's rights."""
    home = installation.namespace
    install_rights(installation.api, home, *LEARNING)
    installation.apply(config_map(home))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig_of(installation.api, home, tmp_path)))
    transport = Transport(await load_configuration(), lambda: None)
    yield transport, ModelMap(transport, home, MODELS)
    await transport.close()
    remove_rights(installation.api)


async def test_two_writers_do_not_undo_each_other_and_no_other_config_map_is_reached(
    installation: Installation, shelf: tuple[Transport, ModelMap]
) -> None:
    transport, mine = shelf
    first, second = kind_of("a", {}), kind_of("b", {})
    before = await mine.read()
    assert before.models == {}
    await mine.write(before, {first: "one", second: "two"})
    with pytest.raises(Conflict):
        await mine.write(before, {first: "overtaken"})
    await mine.write(await mine.read(), {second: "two"})
    assert stored(installation) == {second: "two"}
    labels = installation.get("configmap", MODELS)["metadata"]["labels"]
    assert labels["app.kubernetes.io/component"] == "anomaly-models", "the plugin finds it by that"
    for name in ("kube-root-ca.crt", "another"):
        with pytest.raises(Rejected, match="forbidden"):
            await ModelMap(transport, installation.namespace, name).read()


async def test_a_full_config_map_is_accepted_by_the_api_server(shelf: tuple[Transport, ModelMap]) -> None:
    _, mine = shelf
    size = MAX_MODELS_BYTES // 64 - 25
    full = {kind_of("a", {"replicas": number}): size * "x" for number in range(64)}
    await mine.write(await mine.read(), full)
    assert (await mine.read()).models == full


async def test_an_upgrade_of_the_chart_keeps_what_is_learned(installation: Installation, api: ApiServer) -> None:
    made = config_map(installation.namespace)
    assert "data" not in made
    installation.apply(made)
    store(installation, {kind_of("a", {}): "one"})
    installation.apply(made)
    assert stored(installation) == {kind_of("a", {}): "one"}


async def test_only_the_operator_gives_lessons_and_what_is_none_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "control")
    with running(Service(tmp_path, issue(authority, tmp_path / "tls"), f"localhost:{free_port()}")) as service:
        until(lambda: service.page("healthz")[0] == 200)
        operator, other = (shown_by(authority, authority.client(name)) for name in ("root", "falcon gateway"))
        kind = kind_of("team", {})
        lesson = Lesson(
            day=1,
            jobs=[JobLesson(uid="u", generation=1, kind=kind, quiet=True)],
            models={kind: document.encode(learned())},
        )

        async def said(tls: Any, body: bytes) -> str:
            try:
                return (await post(service.address, tls, "/v1/lesson", body, 1 << 20)).decode()
            except Exception as error:  # noqa: BLE001 - the test compares which
                return str(error)

        assert decode_learned((await said(operator, encode_lesson(lesson))).encode()).models is None
        assert service.metric("falcon_anomaly_kinds") == 1.0
        assert "403" in await said(other, encode_lesson(lesson))
        assert "400" in await said(operator, b'{"day":1,"jobs":[{}],"models":{}}')
        assert "400" in await said(operator, b'{"day":1,"jobs":[],"models":{"../x":"y"}}')
        assert "413" in await said(operator, b" " * (3 << 20))
        assert service.metric("falcon_anomaly_lessons_total") == 1.0
        assert service.end() == 0
