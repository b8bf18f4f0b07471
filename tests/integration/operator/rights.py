"""The chart's rights and admission policies in a namespace, and a kubeconfig of the operator's own account."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.integration.api.apiserver import ApiServer
from tests.integration.chart.charts import Rendered

RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


def install_rights(api: ApiServer, home: str, *values: str) -> None:
    """Install them for an operator whose own namespace is ``home``."""
    for (kind, _), manifest in Rendered("--namespace", home, *values).objects.items():
        if kind not in (*RIGHTS, *POLICIES):
            continue
        if kind in ("ServiceAccount", "Role", "RoleBinding"):
            manifest["metadata"].setdefault("namespace", home)
        api.ok("kubectl", "apply", "--server-side", "-f", "-", stdin=json.dumps(manifest))


def remove_rights(api: ApiServer) -> None:
    """Remove those that no namespace takes with it."""
    api.run("kubectl", "delete", "clusterrole,clusterrolebinding", "-l", "app.kubernetes.io/instance=falcon")


def kubeconfig_of(api: ApiServer, namespace: str, folder: Path) -> Path:
    """Write the kubeconfig of the operator's account."""
    token = api.ok("kubectl", "-n", namespace, "create", "token", "falcon").strip()
    config = yaml.safe_load(api.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return path
