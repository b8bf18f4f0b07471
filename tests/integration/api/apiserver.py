"""A real kube-apiserver with its etcd and nothing else: what a test of schemas, CEL, RBAC or Helm needs, in seconds.

No controller and no kubelet run, so nothing is garbage-collected, no pod starts, no service account is made by itself.
Both processes listen on loopback alone, keep everything under one temporary folder, and die with their parent.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.ports import free_port

CACHE_BIN = Path(os.environ.get("FALCON_CACHE", Path.home() / ".cache" / "falcon")) / "bin"
VERSION = os.environ.get("FALCON_KUBERNETES", "")  # such as 1.33, of `make test-versions`; empty: the cluster's version
TOKEN = "admin-of-a-throwaway-cluster"  # guards a loopback server that lives for one test session
START_TIMEOUT_SECONDS = 60.0


class MissingBinaryError(RuntimeError):
    """A program is neither in the cache nor on PATH; the message names it and the remedy."""


def binary(name: str) -> str:
    """Return the path of one of the project's pinned binaries, or of its namesake on PATH.

    With FALCON_KUBERNETES, kube-apiserver and kubectl are those of that version, and never another one's.
    """
    if VERSION and name in ("kube-apiserver", "kubectl"):
        of_version = CACHE_BIN / VERSION / name
        if not of_version.exists():
            raise MissingBinaryError(f"{of_version} does not exist: run `make test-versions VERSIONS={VERSION}`")
        return str(of_version)
    cached = CACHE_BIN / name
    found = str(cached) if cached.exists() else shutil.which(name)
    if found is None:
        raise MissingBinaryError(f"{name} is not in {CACHE_BIN}: run `make cluster-build`")
    return found


@dataclass(frozen=True)
class ApiServer:
    """A running server; the token belongs to ``system:masters``."""

    url: str
    ca_file: Path
    kubeconfig: Path
    work_dir: Path

    def run(self, *argv: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl or helm against this server; the caller judges the exit status."""
        return subprocess.run(
            [binary(argv[0]), *argv[1:]],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.work_dir)},
        )

    def ok(self, *argv: str, stdin: str | None = None) -> str:
        """Return the stdout of a command that must succeed."""
        done = self.run(*argv, stdin=stdin)
        assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}{done.stdout}"
        return done.stdout

    def post(self, path: str, manifest: dict[str, Any], user: str) -> dict[str, Any]:
        """Create an object as another user, and return it: kubectl would take a fifth of a second of CPU."""
        headers = {"Authorization": f"Bearer {TOKEN}", "Impersonate-User": user, "Content-Type": "application/json"}
        url = urllib.parse.urlsplit(self.url)
        trusted = ssl.create_default_context(cafile=str(self.ca_file))
        with contextlib.closing(http.client.HTTPSConnection(url.netloc, timeout=20, context=trusted)) as connection:
            connection.request("POST", path, json.dumps(manifest), headers)
            answer = connection.getresponse()
            body = answer.read()
        assert answer.status == http.HTTPStatus.CREATED, body
        created: dict[str, Any] = json.loads(body)
        return created


@contextlib.contextmanager
def running_apiserver() -> Iterator[ApiServer]:
    """Start etcd and kube-apiserver, wait until they are ready, and stop them at the end."""
    with running_store() as store, serving(store, free_port()) as server:
        yield server


@dataclass(frozen=True)
class Store:
    """A running etcd, which outlives the servers on it, and the folder that all of them use."""

    url: str
    work_dir: Path


@contextlib.contextmanager
def running_store() -> Iterator[Store]:
    """Start an empty etcd, and stop it at the end."""
    with tempfile.TemporaryDirectory(prefix="falcon-apiserver-") as folder:
        store = Store(f"http://127.0.0.1:{free_port()}", Path(folder))
        with process(store.work_dir, "etcd", *_etcd_flags(store.work_dir, store.url)):
            yield store


@contextlib.contextmanager
def serving(store: Store, port: int) -> Iterator[ApiServer]:
    """Start a kube-apiserver on the store, wait until it is ready, and stop it at the end."""
    work_dir = store.work_dir
    ca_file = work_dir / "certs" / "apiserver.crt"
    with process(work_dir, "kube-apiserver", *_apiserver_flags(work_dir, store.url, port)) as running:
        _wait_ready(running, port, work_dir / "kube-apiserver.log")
        url = f"https://127.0.0.1:{port}"
        kubeconfig = work_dir / "kubeconfig"
        kubeconfig.write_text(_kubeconfig(url, ca_file))
        kubeconfig.chmod(0o600)
        yield ApiServer(url=url, ca_file=ca_file, kubeconfig=kubeconfig, work_dir=work_dir)


def _etcd_flags(work_dir: Path, url: str) -> list[str]:
    return [
        f"--data-dir={work_dir / 'etcd'}",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls=http://127.0.0.1:{free_port()}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def _apiserver_flags(work_dir: Path, etcd_url: str, port: int) -> list[str]:
    tokens = work_dir / "tokens.csv"
    tokens.write_text(f"{TOKEN},admin,admin,system:masters\n")
    key = work_dir / "service-account.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True, timeout=30)
    return [
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={work_dir / 'certs'}",
        f"--etcd-servers={etcd_url}",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--authorization-mode=RBAC",
        "--allow-privileged",  # as every cluster: its own network plugin needs it
        f"--token-auth-file={tokens}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        # as OpenShift does: the operator's owner references must be within its rights
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
        # no controller makes the default service accounts that this plugin would demand of pods
        "--disable-admission-plugins=ServiceAccount",
        "--v=1",
    ]


@contextlib.contextmanager
def process(work_dir: Path, name: str, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program with its output in ``<name>.log``; it is killed also when this process dies."""
    with (work_dir / f"{name}.log").open("wb") as log:
        running = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", binary(name), *flags],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=work_dir,
        )
        try:
            yield running
        finally:
            running.kill()  # a graceful end takes seconds and serves no client
            running.wait()


def _wait_ready(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    insecure = ssl._create_unverified_context()  # its certificate is written only while it starts
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=2, context=insecure)
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
            connection.request("GET", "/readyz", headers={"Authorization": f"Bearer {TOKEN}"})
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        time.sleep(0.1)
    tail = log.read_text(errors="replace")[-4000:]
    raise RuntimeError(f"kube-apiserver is not ready (exit status {server.poll()}):\n{tail}")


def _kubeconfig(url: str, ca_file: Path) -> str:
    return f"""\
apiVersion: v1
kind: Config
current-context: throwaway
clusters: [{{name: throwaway, cluster: {{server: "{url}", certificate-authority: "{ca_file}"}}}}]
users: [{{name: admin, user: {{token: "{TOKEN}"}}}}]
contexts: [{{name: throwaway, context: {{cluster: throwaway, user: admin}}}}]
"""
