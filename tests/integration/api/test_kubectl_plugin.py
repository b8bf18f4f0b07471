"""``kubectl falcon …`` as a user types it: the real kubectl finds the plugin on PATH, against a real API server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import msgspec
import pytest

from tests.integration.api.apiserver import ApiServer, binary
from tests.integration.api.manifests import TRAINING_JOB, changed
from tests.integration.api.test_reading import STATUS
from tests.integration.chart.charts import CHART

SECRET = "planted-4711-value"


@pytest.fixture
def team(api: ApiServer) -> str:
    """Make a job with a status in a namespace of its own, and return the namespace."""
    api.run("kubectl", "create", "namespace", "plugin")
    container = {"name": "trainer", "image": "x", "command": ["python", "train.py"]}
    container["env"] = [{"name": "WANDB_API_KEY", "value": SECRET}]  # type: ignore[assignment]
    job = changed(TRAINING_JOB, {"metadata.namespace": "plugin", "spec.template.spec.containers": [container]})
    api.ok("kubectl", "apply", "-f", "-", stdin=json.dumps(job))
    status = json.dumps({"status": msgspec.to_builtins(STATUS)})
    api.ok("kubectl", "patch", "ftj", "gpt2", "-n", "plugin", "--subresource=status", "--type=merge", "-p", status)
    return "plugin"


def falcon(api: ApiServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``kubectl falcon``: the plugin and kubectl itself are found on PATH."""
    path = f"{Path(sys.executable).parent}:{Path(binary('kubectl')).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "KUBECONFIG": str(api.kubeconfig), "HOME": str(api.work_dir)}
    command = [binary("kubectl"), "falcon", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_a_job_is_explained_drawn_and_listed(api: ApiServer, team: str) -> None:
    page = falcon(api, "explain", "gpt2", "-n", team)
    assert "TrainingJob plugin/gpt2: Degraded" in page.stdout, page.stderr
    assert "node-c excluded" in page.stdout
    assert "the TrainingRun: there is no trainingruns.falcon.dev 'gpt2'" in " ".join(page.stdout.split())
    assert "plugin/gpt2" in falcon(api, "timeline", "gpt2", "-n", team).stdout
    assert "2.65x" in falcon(api, "top", "-A").stdout


def test_what_is_not_there_is_told_in_plain_words(api: ApiServer, team: str) -> None:
    elsewhere = falcon(api, "explain", "gpt2", "-n", "kube-system")
    assert elsewhere.returncode == 1
    assert "there is one in namespace plugin: choose it with -n" in elsewhere.stderr
    denied = falcon(api, "explain", "gpt2", "-n", team, "--as", "nobody")
    assert "you may not get trainingjobs.falcon.dev in namespace plugin" in denied.stderr


def test_who_may_only_read_is_told_so_and_stops_no_rank(api: ApiServer, team: str) -> None:
    """Check with the chart's own role: it is bound itself, since no controller aggregates here."""
    roles = api.ok("helm", "template", "falcon", str(CHART), "-s", "templates/operator/user-roles.yaml")
    api.ok("kubectl", "apply", "-f", "-", stdin=roles)
    api.ok("kubectl", "create", "clusterrolebinding", "reader", "--clusterrole=falcon-view", "--user=reader")
    assert falcon(api, "explain", "gpt2", "-n", team, "--as", "reader").returncode == 0
    for command in ("check", "suspend"):
        refused = falcon(api, command, "gpt2", "-n", team, "--as", "reader")
        assert refused.returncode == 1
        assert f"you may not patch trainingjobs.falcon.dev in namespace {team}" in refused.stderr
    job = json.loads(api.ok("kubectl", "get", "ftj", "gpt2", "-n", team, "-o", "json"))
    assert "falcon.dev/check" not in job["metadata"].get("annotations", {})
    assert not job["spec"].get("suspend")


def test_a_job_is_suspended_and_resumed(api: ApiServer, team: str) -> None:
    def suspended() -> str:
        return api.ok("kubectl", "get", "ftj", "gpt2", "-n", team, "-o", "jsonpath={.spec.suspend}")

    assert "pods are deleted" in " ".join(falcon(api, "suspend", "gpt2", "-n", team).stdout.split())
    assert suspended() == "true"
    assert "is resumed" in falcon(api, "resume", "gpt2", "-n", team).stdout
    assert suspended() in ("", "false")


def test_a_report_holds_no_secret(api: ApiServer, team: str, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.tar.gz"
    done = falcon(api, "export", "gpt2", "-n", team, "-o", str(bundle))
    assert done.returncode == 0, done.stderr
    with tarfile.open(bundle) as archive:
        contents = {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
    assert b"node-c excluded" in contents["falcon-gpt2/trainingjob.json"]
    assert SECRET.encode() not in b"".join(contents.values())
