"""A real Prometheus as a process of its own, which gets its samples by OTLP and not by scraping."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.integration.api.apiserver import binary
from tests.integration.operator.cluster import until
from tests.integration.ports import free_port


class Gauge(NamedTuple):
    """A series with its samples: seconds since 1970, and values."""

    name: str
    labels: Mapping[str, str]
    samples: Iterable[tuple[float, float]]


class Prometheus:
    """One process at a port of its own."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        folder.mkdir()
        # Samples of the past arrive in any order.
        (folder / "prometheus.yml").write_text("storage: {tsdb: {out_of_order_time_window: 1h}}\n")
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [
            "setpriv", "--pdeathsig", "KILL", str(binary("prometheus")),
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--web.enable-otlp-receiver",
        ]  # fmt: skip
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        until(self._ready)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def push(self, job: str, *gauges: Gauge) -> None:
        """Store series whose label ``job`` is this."""
        resource = {"attributes": [_attribute("service.name", job)]}
        metrics = [{"name": each.name, "gauge": {"dataPoints": list(_points(each))}} for each in gauges]
        body = {"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": metrics}]}]}
        request = urllib.request.Request(
            f"{self.url}/api/v1/otlp/v1/metrics",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200, answer.read()

    def _ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
        return False


def _points(gauge: Gauge) -> Iterator[dict[str, object]]:
    labels = [_attribute(name, value) for name, value in gauge.labels.items()]
    for at, value in gauge.samples:
        yield {"attributes": labels, "timeUnixNano": str(round(at * 1e9)), "asDouble": value}


def _attribute(name: str, value: str) -> dict[str, object]:
    return {"key": name, "value": {"stringValue": value}}


def since(seconds: float, each: float = 10.0) -> list[float]:
    """Return times of the newest ``seconds``, until now."""
    now = time.time()
    return [now - seconds + each * step for step in range(int(seconds / each) + 1)]
