"""Parts of the real control plane beside the kube-apiserver: its scheduler, and single controllers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.integration.api.apiserver import ApiServer, process


@contextlib.contextmanager
def scheduler(api: ApiServer) -> Iterator[None]:
    """Run the real scheduler."""
    with process(api.work_dir, "kube-scheduler", *_flags(api)):
        yield


@contextlib.contextmanager
def controllers(api: ApiServer, *names: str) -> Iterator[None]:
    """Run these controllers of the real controller manager, such as ``disruption-controller``."""
    with process(api.work_dir, "kube-controller-manager", f"--controllers={','.join(names)}", *_flags(api)):
        yield


def _flags(api: ApiServer) -> list[str]:
    return [f"--kubeconfig={api.kubeconfig}", "--leader-elect=false", "--secure-port=0"]
