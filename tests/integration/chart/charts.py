"""Rendering the chart with the project's own helm."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.integration.api.apiserver import VERSION, binary

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "falcon"
LOCAL_VALUES = ROOT / "dev" / "values-local.yaml"
NAMESPACE = "falcon-system"
KUBE_VERSION = VERSION or "1.36"
ETCD_WORKLOADS = {("Deployment", "falcon-etcd"), ("StatefulSet", "falcon-etcd")}
Manifest = dict[str, Any]


def helm(*args: str) -> subprocess.CompletedProcess[str]:
    """Run helm without a cluster; the caller judges the exit status."""
    return subprocess.run([binary("helm"), *args], capture_output=True, text=True, timeout=60, check=False)


@functools.cache
def template(*flags: str, chart: Path = CHART, release: str = "falcon") -> subprocess.CompletedProcess[str]:
    return helm("template", release, str(chart), "--namespace", NAMESPACE, "--kube-version", KUBE_VERSION, *flags)


class Rendered:
    """The objects of one rendering, by kind and name."""

    def __init__(self, *flags: str, chart: Path = CHART, release: str = "falcon") -> None:
        done = template(*flags, chart=chart, release=release)
        assert done.returncode == 0, done.stderr
        self.objects: dict[tuple[str, str], Manifest] = {
            (manifest["kind"], manifest["metadata"]["name"]): manifest
            for manifest in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader)
            if manifest
        }

    def __call__(self, kind: str, name: str) -> Manifest:
        return self.objects[kind, name]

    def kinds(self) -> set[str]:
        return {kind for kind, _ in self.objects}

    def operator_env(self) -> dict[str, str]:
        """Return the operator's settings that the chart writes as plain values."""
        (container,) = self("Deployment", "falcon")["spec"]["template"]["spec"]["containers"]
        return {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}

    def gateway_pod(self) -> Manifest:
        """Return the spec of a gateway's pod."""
        spec: Manifest = self("Deployment", "falcon-gateway")["spec"]["template"]["spec"]
        return spec

    def etcd(self) -> Manifest:
        """Return the workload that runs etcd: a Deployment for one member, a StatefulSet for several."""
        (workload,) = (self.objects[kind, name] for kind, name in self.objects if (kind, name) in ETCD_WORKLOADS)
        return workload

    def etcd_pod(self) -> Manifest:
        """Return the spec of a member's pod."""
        spec: Manifest = self.etcd()["spec"]["template"]["spec"]
        return spec

    def etcd_flags(self) -> dict[str, str]:
        (container,) = self.etcd_pod()["containers"]
        return dict(arg.removeprefix("--").split("=", 1) for arg in container["args"])
