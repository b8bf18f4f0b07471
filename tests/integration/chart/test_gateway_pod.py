"""A real gateway under the chart's own environment: it becomes ready, and `helm test` finds what agents expect."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.chart.charts import NAMESPACE, Rendered
from tests.integration.gateway.gateways import Gateway, Site

SERVER_NAME = f"falcon-gateway.{NAMESPACE}.svc"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def chart() -> Rendered:
    return Rendered()


def as_the_chart_starts_it(site: Site, chart: Rendered) -> Gateway:
    """Start a gateway with the chart's environment; only addresses and files are this machine's."""
    issued = site.control.server(SERVER_NAME)
    shutil.copy(site.jobs.ca, issued.cert.parent / "jobs-ca.crt")
    root = site.control.client("root")
    folders = {"/etc/falcon/tls": str(issued.cert.parent), "/etc/falcon/etcd": str(root.cert.parent)}
    (container,) = chart.gateway_pod()["containers"]
    given = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    for variable, value in given.items():
        for folder, here in folders.items():
            if value.startswith(folder):
                given[variable] = value.replace(folder, here)
    given["FALCON_ETCD_ENDPOINTS"] = ",".join(site.etcd.endpoints)
    return site.gateway(**given)


def _run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)


async def test_the_probes_answer_and_helm_test_passes(site: Site, chart: Rendered) -> None:
    site.etcd.start()
    try:
        gateway = as_the_chart_starts_it(site, chart)
        await gateway.ready()
        (container,) = chart.gateway_pod()["containers"]
        for probe in ("livenessProbe", "readinessProbe"):
            assert await gateway.page(container[probe]["httpGet"]["path"].removeprefix("/"))
        (test,) = chart("Pod", "falcon-test-gateway")["spec"]["containers"]
        (program,) = test["args"]
        here = program.replace("/tls/ca.crt", str(site.control.ca))
        here = here.replace("(host, 7443)", f"('127.0.0.1', {gateway.agents.rpartition(':')[2]})")
        done = await asyncio.to_thread(_run, here)
        assert done.returncode == 0, done.stderr
        assert SERVER_NAME in done.stdout
    finally:
        site.stop()
