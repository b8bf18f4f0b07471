"""The life of a release on a real kube-apiserver: install, upgrade, uninstall, and again under another name."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.api.apiserver import ApiServer, running_apiserver
from tests.integration.api.manifests import TRAINING_JOB
from tests.integration.chart.charts import CHART, NAMESPACE

CRDS = ("trainingjobs.falcon.dev", "trainingruns.falcon.dev", "warmpools.falcon.dev")


@pytest.fixture
def cluster() -> Iterator[ApiServer]:
    """Yield an empty cluster for each test."""
    with running_apiserver() as server:
        yield server


def newer_chart(folder: Path) -> Path:
    """Make the chart as a later version might be: TrainingJob has a field more."""
    copy = folder / "falcon"
    shutil.copytree(CHART, copy)
    path = copy / "files" / "crds" / "trainingjobs.falcon.dev.yaml"
    old = "              suspend:\n"
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, f"              newer:\n                type: boolean\n{old}"))
    return copy


def install(cluster: ApiServer, release: str, namespace: str, *flags: str, chart: Path = CHART) -> tuple[int, str]:
    done = cluster.run("helm", "install", release, str(chart), "-n", namespace, "--create-namespace", *flags)
    return done.returncode, done.stdout + done.stderr


def crd(cluster: ApiServer, name: str = CRDS[0]) -> dict[str, object]:
    return dict(json.loads(cluster.ok("kubectl", "get", "crd", name, "-o", "json")))


def has_newer_field(cluster: ApiServer) -> bool:
    return '"newer"' in json.dumps(crd(cluster))


def run_a_job(cluster: ApiServer) -> str:
    """Create a job once the server serves all definitions; return its uid."""
    cluster.ok("kubectl", "wait", "--for=condition=Established", "--timeout=120s", *(f"crd/{name}" for name in CRDS))
    # A server may take minutes to remove a definition whose storage it still initializes; a list waits for that.
    cluster.ok("kubectl", "get", "trainingjobs,trainingruns,warmpools", "-A")
    cluster.ok("kubectl", "create", "-f", "-", stdin=json.dumps(TRAINING_JOB))
    return uid_of_the_job(cluster)


def uid_of_the_job(cluster: ApiServer) -> str:
    return cluster.ok("kubectl", "get", "ftj", "gpt2", "-o", "jsonpath={.metadata.uid}")


def test_install_upgrade_uninstall_leaves_only_what_is_kept(cluster: ApiServer, tmp_path: Path) -> None:
    status, notes = install(cluster, "falcon", NAMESPACE)
    assert status == 0, notes
    assert "helm test falcon" in notes
    uid = run_a_job(cluster)
    upgrade = ("helm", "upgrade", "falcon", str(newer_chart(tmp_path)), "-n", NAMESPACE, "--set", "operator.replicas=2")
    cluster.ok(*upgrade)
    assert has_newer_field(cluster)
    cluster.ok("helm", "uninstall", "falcon", "-n", NAMESPACE, "--no-hooks")
    assert uid_of_the_job(cluster) == uid
    kinds = (
        "deploy,sts,svc,sa,role,rolebinding,clusterrole,clusterrolebinding,pdb,validatingadmissionpolicy,"
        "validatingwebhookconfiguration,"
        "validatingadmissionpolicybinding"
    )
    left = cluster.ok("kubectl", "get", kinds, "-A", "-o", "name", "-l", "app.kubernetes.io/instance=falcon")
    assert left == ""


@pytest.mark.slow  # the tests before and after it upgrade kept definitions, too
def test_reinstall_over_kept_crds_under_the_same_name_upgrades_them(cluster: ApiServer, tmp_path: Path) -> None:
    install(cluster, "falcon", NAMESPACE)
    uid = run_a_job(cluster)
    cluster.ok("helm", "uninstall", "falcon", "-n", NAMESPACE, "--no-hooks")
    status, said = install(cluster, "falcon", NAMESPACE, chart=newer_chart(tmp_path))
    assert status == 0, said
    assert has_newer_field(cluster)
    assert uid_of_the_job(cluster) == uid


def test_reinstall_over_kept_crds_under_another_name(cluster: ApiServer, tmp_path: Path) -> None:
    """The same schema is left as it is; another schema is refused with the very commands that hand it over."""
    install(cluster, "falcon", NAMESPACE)
    uid = run_a_job(cluster)
    cluster.ok("helm", "uninstall", "falcon", "-n", NAMESPACE, "--no-hooks")

    before = crd(cluster)
    status, said = install(cluster, "other", "elsewhere")
    assert status == 0, said
    assert crd(cluster) == before
    newer = newer_chart(tmp_path)
    refused = cluster.run("helm", "upgrade", "other", str(newer), "-n", "elsewhere")
    assert "crds.enabled" in refused.stderr
    assert CRDS[0] in refused.stderr

    commands = re.findall(r"^\s+(kubectl .*)$", refused.stderr, flags=re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        cluster.ok(*command.split())
    cluster.ok("helm", "upgrade", "other", str(newer), "-n", "elsewhere")
    assert has_newer_field(cluster)
    assert uid_of_the_job(cluster) == uid
    cluster.ok("helm", "uninstall", "other", "-n", "elsewhere", "--no-hooks")
    assert uid_of_the_job(cluster) == uid


def test_crds_applied_by_kubectl_are_not_taken_silently(cluster: ApiServer) -> None:
    cluster.ok("kubectl", "apply", "--server-side", "-f", str(CHART / "files" / "crds"))
    status, said = install(cluster, "falcon", NAMESPACE)
    assert status != 0
    assert f"kubectl annotate --overwrite crd {' '.join(CRDS)}" in said
    status, said = install(cluster, "falcon", NAMESPACE, "--set", "crds.enabled=false")
    assert status == 0, said


def test_without_keep_the_crds_go_with_the_release(cluster: ApiServer) -> None:
    status, notes = install(cluster, "falcon", NAMESPACE, "--set", "crds.keep=false")
    assert status == 0, notes
    assert "deletes every TrainingJob" in notes
    run_a_job(cluster)
    cluster.ok("helm", "uninstall", "falcon", "-n", NAMESPACE, "--no-hooks")
    cluster.ok("kubectl", "wait", "--for=delete", "--timeout=120s", *(f"crd/{name}" for name in CRDS))
