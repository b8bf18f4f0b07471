"""The real anomaly service as a process of its own, with certificates made by the operator's own functions."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from falcon_gateway import Tls
from falcon_operator.bus import certs
from tests.integration.operator.authority import Authority
from tests.integration.pki import Issued
from tests.integration.ports import free_port

NAME = "falcon-anomalies.falcon-system.svc"


def issue(authority: Authority, folder: Path) -> Path:
    """Write the service's certificate as its Secret holds it, and return the folder."""
    pair = certs.issue_server(authority.pair, [NAME], authority.now, certs.ANOMALY_SERVICE)
    folder.mkdir()
    for name, content in {"ca.crt": authority.pair.cert, "tls.crt": pair.cert, "tls.key": pair.key}.items():
        (folder / name).write_bytes(content)
    return folder


def shown_by(authority: Authority, issued: Issued) -> Tls:
    """Return what a client of this authority shows."""
    return Tls(authority.ca, issued.cert, issued.key)


class Service:
    """One process, at two ports of its own."""

    def __init__(self, folder: Path, tls: Path, gateways: str, gateway_name: str = "localhost", **more: str) -> None:
        self.port, self.pages = free_port(), free_port()
        self.log = folder / "service.log"
        self._environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get(
                "PYTHONPATH", ""
            ),  # the tree that is tested, where it is not the installed one
            "FALCON_GATEWAYS": gateways,
            "FALCON_GATEWAY_NAME": gateway_name,
            "FALCON_TLS_DIR": str(tls),
            "FALCON_TLS_SECRET": "falcon-anomalies-tls",
            "FALCON_PORT": str(self.port),
            "FALCON_METRICS_PORT": str(self.pages),
            "FALCON_LOG_LEVEL": "debug",
            **more,
        }
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        with self.log.open("ab") as log:
            command = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "falcon_anomaly"]
            self.process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)

    def end(self, by: signal.Signals = signal.SIGTERM) -> int:
        """End the process and return its exit code."""
        assert self.process is not None
        self.process.send_signal(by)
        code = self.process.wait(30)
        self.process = None
        return code

    def page(self, path: str) -> tuple[int, str]:
        """Return status and text of a page; 0 where the service does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.pages}/{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, name: str) -> float | None:
        _, text = self.page("metrics")
        samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
        return next((each.value for each in samples if each.name == name), None)

    def labelled(self, name: str, label: str) -> dict[str, float]:
        """Return the values of a metric by one of its labels."""
        _, text = self.page("metrics")
        samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
        return {each.labels[label]: each.value for each in samples if each.name == name}

    async def metric_of(self, name: str) -> float | None:
        return await asyncio.to_thread(self.metric, name)


@contextlib.contextmanager
def running(service: Service) -> Iterator[Service]:
    service.start()
    try:
        yield service
    finally:
        if service.process is not None:
            service.end(signal.SIGKILL)
