"""Run kubectl as a user types it, for the demo and the end-to-end tests."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Json = dict[str, Any]
T = TypeVar("T")
MOST_FAILED = 3  # looks: an API server or a kubelet that is busy may drop one
PATIENCE = 4.0  # a busy or slow machine must not fail a test: what is awaited has to come, however late


class KubectlError(RuntimeError):
    """The error of a kubectl that exited non-zero; the message is its stderr."""


class WaitTimeoutError(RuntimeError):
    """The error of a condition that did not come true in time; the message says what was seen last."""


class Kubectl:
    """A kubectl for one cluster and one default namespace."""

    def __init__(self, kubeconfig: Path, namespace: str = "default") -> None:
        self.kubeconfig = kubeconfig
        self.namespace = namespace

    def within(self, namespace: str) -> Kubectl:
        """Return kubectl for the same cluster with another default namespace."""
        return Kubectl(self.kubeconfig, namespace)

    def run(self, *args: str, stdin: str | None = None, timeout_seconds: float = 60) -> str:
        """Run kubectl and return its stdout.

        Raises:
            KubectlError: kubectl failed; the message holds kubectl's own message.
        """
        done = subprocess.run(
            ["kubectl", "--namespace", self.namespace, *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
        )
        if done.returncode != 0:
            raise KubectlError(f"kubectl {' '.join(args)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def apply(self, *objects: Json) -> None:
        """Apply the objects as one list."""
        self.run("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def get(self, kind: str, name: str) -> Json | None:
        """Return the object; None where it does not exist."""
        text = self.run("get", kind, name, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def items(self, kind: str, selector: str = "") -> list[Json]:
        """Return all objects of a kind in the namespace (or of a cluster-scoped kind)."""
        chosen = ("-l", selector) if selector else ()
        return list(json.loads(self.run("get", kind, "-o", "json", *chosen))["items"])

    def patch(self, kind: str, name: str, patch: Json) -> None:
        """Merge-patch the object."""
        self.run("patch", kind, name, "--type", "merge", "-p", json.dumps(patch))


def wait_for(
    what: str,
    look: Callable[[], T | None],
    *,
    timeout_seconds: float,
    every_seconds: float = 0.5,
    last_seen: Callable[[], str] = lambda: "",
) -> T:
    """Poll until ``look`` returns a true value, and return that value.

    ``timeout_seconds`` is the longest time that an idle machine needs; on any machine, ``PATIENCE`` times as long is
    allowed.

    Raises:
        WaitTimeoutError: names what was awaited, for how long, and what ``last_seen`` says.
        KubectlError: and other errors of commands, where ``MOST_FAILED`` looks after each other fail.
    """
    timeout_seconds *= PATIENCE
    started = time.monotonic()
    failed = 0
    while True:
        try:
            found = look()
            failed = 0
        # A single failed look may be a busy API server; many in a row are a real failure.
        except (KubectlError, subprocess.SubprocessError):
            found, failed = None, failed + 1
            if failed == MOST_FAILED:
                raise
        if found:
            return found
        if time.monotonic() - started > timeout_seconds:
            raise WaitTimeoutError(f"{what}: not within {timeout_seconds:.0f} s; {last_seen()}")
        time.sleep(every_seconds)
