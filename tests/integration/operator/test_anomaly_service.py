"""The operator makes the anomaly service's certificate, asks the service, and needs neither."""

from __future__ import annotations

import base64
from pathlib import Path

from tests.integration.anomaly.service_process import Service, running
from tests.integration.operator.cluster import Installation, until
from tests.integration.ports import free_port

SECRET = "falcon-anomalies-tls"


def written(installation: Installation) -> Path:
    """Return a folder with the service's Secret, as a volume shows it."""
    folder = installation.folder / SECRET
    folder.mkdir()
    for name, content in installation.get("secret", SECRET)["data"].items():
        (folder / name).write_bytes(base64.b64decode(content))
    return folder


def test_it_makes_the_services_certificate_and_asks_it_and_goes_on_while_it_is_away(installation: Installation) -> None:
    service = Service(installation.folder, installation.folder / SECRET, f"localhost:{free_port()}")
    operator = installation.operator("op-a", FALCON_ANOMALY_SERVICE=f"localhost:{service.port}")
    installation.start_etcd()
    until(lambda: installation.get("secret", SECRET))
    until(lambda: operator.metric("falcon_anomaly_service_failures_total"))
    assert operator.metric("falcon_anomaly_service_answers") == 0.0
    assert operator.metric("falcon_leading") == 1.0, "a service that is away ends nothing"
    assert len(operator.logged("the anomaly service does not answer")) == 1
    written(installation)
    with running(service):
        until(lambda: operator.metric("falcon_anomaly_service_answers") == 1.0)
    assert operator.terminate() == 0


def test_without_a_service_there_is_neither_a_certificate_nor_a_question(installation: Installation) -> None:
    operator = installation.operator("op-a")
    installation.start_etcd()
    until(lambda: operator.metric("falcon_etcd_session_healthy") == 1.0)
    assert not installation.get("secret", SECRET)
    assert operator.metric("falcon_anomaly_service_answers") is None
