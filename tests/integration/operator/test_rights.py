"""The chart's rights are enough: the operator does all its work under its own service account, and meets no refusal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.operator.cluster import READY, Installation, node, until
from tests.integration.operator.rights import install_rights, kubeconfig_of, remove_rights


@pytest.mark.parametrize("everywhere", [True, False], ids=["everywhere", "in-one-namespace"])
def test_every_call_is_allowed(installation: Installation, tmp_path: Path, everywhere: bool) -> None:
    api, home = installation.api, installation.namespace
    jobs = f"{home}-jobs"
    api.ok("kubectl", "create", "namespace", jobs)
    keep = {"karpenter.sh/do-not-disrupt": "true"}
    values = ["--set-json", f"operator.spareAnnotations={json.dumps(keep)}"]
    values += [] if everywhere else ["--set", f"operator.watchNamespaces={{{jobs}}}"]
    install_rights(api, home, *values)
    for name, labels in (("s1", {"pool": "yes"}), ("w1", {})):
        installation.apply(node(name, labels))
        installation.patch_status("node", name, READY)
    operator = installation.operator(
        "op-a",
        KUBECONFIG=str(kubeconfig_of(api, home, tmp_path)),
        FALCON_SPARE_ANNOTATIONS=json.dumps(keep),
        FALCON_WATCH_NAMESPACES="" if everywhere else jobs,
    )
    installation.start_etcd()
    until(lambda: operator.metric("falcon_etcd_session_healthy") == 1.0)
    spec = {"nodeSelector": {"pool": "yes"}, "images": ["trainer:1"]}
    pool = {"apiVersion": "falcon.dev/v1alpha1", "kind": "WarmPool", "metadata": {"name": "spares"}, "spec": spec}
    installation.apply(pool)
    template = {"spec": {"containers": [{"name": "t", "image": "x:1", "command": ["python", "t.py"]}]}}
    job = {
        "apiVersion": "falcon.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "j", "namespace": jobs},
        "spec": {"replicas": 2, "warmPoolRef": {"name": "spares"}, "template": template},
    }
    installation.apply(job)
    until(lambda: len(installation.get("pods", namespace=jobs)) == 2)
    until(lambda: len(installation.get("pods")) == 1)  # the burn-in
    until(lambda: keep.items() <= (installation.get("node", "s1")["metadata"].get("annotations") or {}).items())
    until(lambda: installation.get("secret", "j-falcon-gateway", namespace=jobs))
    until(lambda: installation.get("service", "j", namespace=jobs))
    api.ok("kubectl", "-n", jobs, "patch", "trainingjob", "j", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    until(lambda: not installation.get("pods", namespace=jobs))
    installation.patch_status("node", "s1", {"conditions": [{"type": "Ready", "status": "False"}]})
    until(lambda: not installation.get("pods"))
    until(lambda: installation.get("events", namespace="default"))
    api.ok("kubectl", "-n", jobs, "delete", "trainingjob", "j")
    until(lambda: operator.logged("job forgotten"))
    api.ok("kubectl", "delete", "warmpool", "spares")
    until(lambda: not installation.get("node", "s1")["metadata"].get("annotations", {}).keys() & keep)
    assert operator.terminate() == 0
    log = operator.log.read_text()
    assert "orbidden" not in log
    assert "cannot" not in log
    remove_rights(api)
