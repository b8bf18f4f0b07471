"""Make all calls to the cluster with the user's own kubectl, run as a child process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any, Literal

from kubectl_falcon.trouble import NotThereError, TroubleError, Wanted, trouble

JOBS, RUNS = "trainingjobs.falcon.dev", "trainingruns.falcon.dev"
REQUEST_SECONDS = 20
CALL_SECONDS = 120  # of a whole call: kubectl pages through long lists, and may have to log in first
Scope = Literal["Namespace", "All", "Cluster"]


class Kubectl:
    """A kubectl with the user's flags.

    Args:
        flags: such as ``--context``, for every call.
        namespace: empty for that of the user's context.
    """

    def __init__(self, flags: Sequence[str] = (), namespace: str = "") -> None:
        self._flags = list(flags)
        self._namespace = namespace

    def within(self, namespace: str) -> Kubectl:
        """Return a kubectl with the same flags for another namespace."""
        return Kubectl(self._flags, namespace)

    def get(self, resource: str, name: str, *, scope: Scope = "Namespace") -> dict[str, Any]:
        """Return an object. Raises TroubleError; NotThereError where there is no such object."""
        return self._json(["get", resource, name], Wanted("get", resource, name), scope)

    def list_all(self, resource: str, *selectors: str, scope: Scope = "Namespace") -> dict[str, Any]:
        """Return a list of objects; ``selectors``: flags such as ``--selector=app=x``. Raises TroubleError."""
        return self._json(["get", resource, *selectors], Wanted("list", resource), scope)

    def patch(self, resource: str, name: str, change: dict[str, Any]) -> dict[str, Any]:
        """Merge-patch an object and return it. Raises TroubleError."""
        command = ["patch", resource, name, "--type=merge", f"--patch={json.dumps(change)}"]
        return self._json(command, Wanted("patch", resource, name), "Namespace")

    def logs(self, pod: str, container: str, namespace: str, most_bytes: int) -> str:
        """Return the end of a container's log, at most ``most_bytes`` of it. Raises TroubleError."""
        command = ["logs", pod, f"--container={container}", f"--namespace={namespace}", "--tail=5000"]
        return self._text(command, Wanted("get", "pods/log", pod, f"namespace {namespace}"))[-most_bytes:]

    def version(self) -> dict[str, Any]:
        """Return the versions of kubectl and of the API server. Raises TroubleError."""
        return self._json(["version"], Wanted("get", "the server's version"), "Cluster")

    def namespace(self) -> str:
        """Return the namespace that is looked into, where none is named: the context's, else default."""
        if self._namespace:
            return self._namespace
        command = ["config", "view", "--minify", "--output=jsonpath={..namespace}"]
        return self._text(command, Wanted("read", "the kubeconfig")).strip() or "default"

    def _json(self, command: list[str], wanted: Wanted, scope: Scope) -> dict[str, Any]:
        chosen = []
        if scope == "All":
            chosen = ["--all-namespaces"]
        elif scope == "Namespace" and self._namespace:
            chosen = [f"--namespace={self._namespace}"]
        where = {"All": "all namespaces", "Namespace": "", "Cluster": ""}[scope]
        text = self._text([*command, *chosen, "--output=json"], wanted, where, scope)
        try:
            found = json.loads(text)
        except ValueError as error:
            raise TroubleError(f"kubectl did not return JSON: {error}") from error
        if not isinstance(found, dict):
            raise TroubleError("kubectl did not return a JSON object")
        return found

    def _text(self, command: list[str], wanted: Wanted, where: str = "", scope: Scope = "Cluster") -> str:
        done = self._run(command)
        if done.returncode == 0:
            return done.stdout
        if scope == "Namespace":
            where = f"namespace {self.namespace()}"
        raise trouble(done.stderr, Wanted(wanted.verb, wanted.resource, wanted.name, wanted.namespace or where))

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        # kubectl's own time limit holds for each request, ours for the whole call.
        argv = ["kubectl", *self._flags, f"--request-timeout={REQUEST_SECONDS}s", *command]
        try:
            return subprocess.run(
                argv,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=CALL_SECONDS,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except FileNotFoundError as error:
            raise TroubleError("kubectl is not on PATH: install it, since this plugin calls it") from error
        except subprocess.TimeoutExpired as error:
            raise TroubleError(f"kubectl {command[0]} gave no answer within {CALL_SECONDS} s") from error


def find_job(kubectl: Kubectl, name: str) -> dict[str, Any]:
    """Return a job's decoded JSON. Where it does not exist, say in which other namespaces there is one of its name."""
    try:
        return kubectl.get(JOBS, name)
    except NotThereError as error:
        elsewhere = _namespaces_of(kubectl, name)
        if elsewhere:
            listed = ", ".join(elsewhere)
            raise NotThereError(f"{error}; there is one in namespace {listed}: choose it with -n") from error
        raise


def _namespaces_of(kubectl: Kubectl, name: str) -> list[str]:
    """Return the namespaces with a job of this name; none where the user may not look."""
    try:
        found = kubectl.list_all(JOBS, f"--field-selector=metadata.name={name}", scope="All")
    except TroubleError:
        return []
    return sorted(each["metadata"]["namespace"] for each in found["items"])
