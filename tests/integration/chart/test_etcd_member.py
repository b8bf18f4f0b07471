"""A real etcd under the chart's own flags: it becomes ready, and only members speak to its peer port."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.api.apiserver import binary
from tests.integration.chart.charts import Rendered
from tests.integration.pki import Issued, Pki
from tests.integration.ports import free_port

SERVER_NAME = "falcon-etcd.falcon-system.svc"
START_TIMEOUT_SECONDS = 30.0


class Member:
    """The chart's etcd on loopback, with the operator's certificates played by a test authority."""

    def __init__(self, folder: Path) -> None:
        self.pki = Pki(folder / "pki")
        self.server = self.pki.server(SERVER_NAME)
        self.ports = {chart_port: free_port() for chart_port in ("2379", "2380", "2381")}
        self.folder = folder

    def flags(self) -> list[str]:
        """Return the chart's flags; only addresses and files are this machine's."""
        files = {
            "/etc/etcd/tls/tls.crt": str(self.server.cert),
            "/etc/etcd/tls/tls.key": str(self.server.key),
            "/etc/etcd/tls/ca.crt": str(self.pki.ca),
            "/var/lib/etcd/data": str(self.folder / "data"),
        }
        result = []
        for flag, value in Rendered().etcd_flags().items():
            if flag.startswith("listen-"):
                scheme, _, port = value.rpartition("0.0.0.0:")
                value = f"{scheme}0.0.0.0:{self.ports[port]}"
            result.append(f"--{flag}={files.get(value, value)}")
        return result

    def get(self, chart_port: str, path: str, host: str = "127.0.0.1") -> int:
        connection = http.client.HTTPConnection(host, self.ports[chart_port], timeout=2)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return connection.getresponse().status

    def ask_as_peer(self, identity: Issued) -> str:
        """Return the peer port's status line for a caller with this certificate, or "" if it hangs up."""
        context = ssl.create_default_context(cafile=str(self.pki.ca))
        context.load_cert_chain(identity.cert, identity.key)
        with (
            socket.create_connection(("127.0.0.1", self.ports["2380"]), timeout=5) as raw,
            contextlib.suppress(ssl.SSLError, ConnectionError),
            context.wrap_socket(raw, server_hostname=SERVER_NAME) as secured,
        ):
            secured.sendall(b"GET /members HTTP/1.0\r\n\r\n")
            return secured.recv(64).decode().split("\r\n")[0]
        return ""


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    member = Member(tmp_path_factory.mktemp("etcd"))
    with (member.folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", binary("etcd"), *member.flags()], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            deadline = time.monotonic() + START_TIMEOUT_SECONDS
            while not _ready(member):
                said = (member.folder / "log").read_text()
                assert process.poll() is None, said
                assert time.monotonic() < deadline, said
                time.sleep(0.1)
            yield member
        finally:
            process.kill()
            process.wait()


def _ready(member: Member) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return member.get("2381", "/readyz") == http.HTTPStatus.OK
    return False


def test_the_probes_answer(member: Member) -> None:
    assert member.get("2381", "/readyz") == http.HTTPStatus.OK
    assert member.get("2381", "/livez") == http.HTTPStatus.OK


def test_it_listens_where_pods_have_addresses_of_ipv6_alone(member: Member) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    for port in ("2379", "2380"):
        socket.create_connection(("::1", member.ports[port]), timeout=5).close()
    assert member.get("2381", "/readyz", "::1") == http.HTTPStatus.OK


def test_etcdctl_reaches_it_as_helm_test_does(member: Member) -> None:
    root = member.pki.client("root")
    files = (f"--cacert={member.pki.ca}", f"--cert={root.cert}", f"--key={root.key}")
    endpoint = f"--endpoints=https://127.0.0.1:{member.ports['2379']}"
    done = subprocess.run(
        [binary("etcdctl"), endpoint, *files, "endpoint", "health"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert "is healthy" in done.stdout + done.stderr


def test_only_a_server_may_speak_as_a_member(member: Member) -> None:
    """A gateway's certificate comes from the same authority; on the peer port it would own the cluster."""
    assert " 200 " in f"{member.ask_as_peer(member.server)} "
    assert member.ask_as_peer(member.pki.client("root")) == ""
