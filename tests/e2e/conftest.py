"""The real cluster with Falcon installed, once a session; every test gets a namespace and a clean set of nodes."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from dev.cluster import faults
from dev.install import CACHE, KUBECONFIG, ROOT, SYSTEM_NAMESPACE, heal_nodes, prepare_cluster, wait_for_spare
from dev.kubectl import Json, Kubectl
from tests.e2e.jobs import Job
from tests.machine import REST, seconds_for_the_machine, wait_for_quiet


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "soak: takes ten minutes and more; `make test-soak`")
    config.addinivalue_line("markers", "long: takes minutes; `make test-e2e-long`")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Print a failure at once: the tests after it take minutes."""
    report = yield
    if report.failed:
        terminal = item.config.pluginmanager.getplugin("terminalreporter")
        terminal.ensure_newline()
        terminal.write_line(report.longreprtext)
    return report


@pytest.fixture(scope="session")
def cluster() -> Kubectl:
    """Return kubectl on the cluster, Falcon installed and the warm pool ready."""
    if not KUBECONFIG.exists():
        pytest.fail(f"no cluster: {KUBECONFIG} does not exist; make cluster-up")
    return prepare_cluster()


@pytest.fixture(scope="session")
def system(cluster: Kubectl) -> Kubectl:
    """Return kubectl in Falcon's own namespace."""
    return cluster.within(SYSTEM_NAMESPACE)


@pytest.fixture
def quiet() -> None:
    """Wait for a quiet machine: for tests in which ranks or links are judged by their speed."""
    wait_for_quiet(min(60.0, seconds_for_the_machine()))


@pytest.fixture
def nodes(cluster: Kubectl) -> Iterator[None]:
    """Undo all faults and fences, before and after, and wait for a spare that is ready."""
    heal_nodes(cluster)
    wait_for_spare(cluster)
    yield
    heal_nodes(cluster)


@pytest.fixture
def namespace(cluster: Kubectl) -> Iterator[Kubectl]:
    """Yield kubectl in a namespace of the test's own."""
    name = f"e2e-{uuid.uuid4().hex[:6]}"
    cluster.run("create", "namespace", name)
    yield cluster.within(name)
    cluster.run("delete", "namespace", name, "--wait=false")  # the next test has a namespace of its own


@pytest.fixture
def checkpoints() -> Iterator[str]:
    """Yield a folder on the host that every node's pods can share (all nodes are one machine here)."""
    path = Path(tempfile.mkdtemp(prefix="falcon-e2e-"))
    path.chmod(0o777)
    yield str(path)
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def start(namespace: Kubectl) -> Iterator[Callable[[Json], Job]]:
    """Apply a job; it is deleted, and its pods waited for, at the end."""
    started: list[Job] = []

    def apply(manifest: Json) -> Job:
        started.append(Job(namespace, manifest))
        return started[-1]

    yield apply
    REST.begin()
    for node in faults.active():
        faults.heal(node)  # a dead node's kubelet confirms no deletion, and a test that failed healed none
    for job in started:
        job.delete()


@pytest.fixture(scope="session")
def torch_site_packages() -> str:
    """Return today's PyTorch wheel, installed on the host by `make torch-venv`."""
    subprocess.run(["make", "--no-print-directory", "torch-venv"], cwd=ROOT, check=True)
    return str(CACHE / "torch" / "site")
