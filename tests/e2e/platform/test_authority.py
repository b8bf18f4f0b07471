"""The control authority is deleted while a job trains: all processes change over, and the job notices nothing."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest
from cryptography import x509

from dev.kubectl import Json, Kubectl, wait_for
from tests.e2e.jobs import Job, training_job

MANY = 100_000
AUTHORITY, SIGNED = "falcon-etcd-ca", ("falcon-etcd-server", "falcon-etcd-root", "falcon-gateway-tls")
ETCD = "app.kubernetes.io/component=etcd"


@pytest.mark.long  # the new authority signs ten minutes after the Secret was deleted
def test_a_job_trains_on_while_the_control_authority_is_replaced(
    nodes: None, cluster: Kubectl, system: Kubectl, start: Callable[[Json], Job]
) -> None:
    job = start(training_job("kept", steps=MANY, replicas=2))
    job.wait_training()
    pods, former = job.pod_uids(), _certificate(system, AUTHORITY, "ca.crt")
    etcd = {pod["metadata"]["uid"] for pod in system.items("pods", ETCD)}
    unheard: set[str] = set()

    system.run("delete", "secret", AUTHORITY)
    wait_for("a new authority", lambda: _replaced(system, former), timeout_seconds=150)
    newest = _certificate(system, AUTHORITY, "ca.crt")

    def changed_over() -> bool:
        reasons = {event["reason"] for event in job.kubectl.items("events")}
        unheard.update(reasons & {"AgentLost", "ProcessFailed", "NodeLost"})
        return all(_is_signed(_certificate(system, name, "tls.crt"), newest) for name in SIGNED)

    wait_for("certificates by the new authority", changed_over, timeout_seconds=1200)
    assert {pod["metadata"]["uid"] for pod in system.items("pods", ETCD)}.isdisjoint(etcd), "etcd was restarted for it"
    reasons = {event["reason"] for event in system.items("events") if event["involvedObject"]["kind"] == "Secret"}
    assert {"CertificateMissing", "CertificateRenewed"} <= reasons
    steps = len(job.log_lines())
    wait_for("steps after the change", lambda: len(job.log_lines()) > steps, timeout_seconds=60)
    assert job.status()["state"] in ("Running", "Degraded"), "other work on the machine may slow the job"
    assert job.pod_uids() == pods
    assert job.status().get("counters", {}).get("restarts", 0) == 0
    assert unheard == set()


def _certificate(system: Kubectl, secret: str, key: str) -> x509.Certificate:
    found = system.get("secret", secret)
    assert found is not None, secret
    return x509.load_pem_x509_certificate(base64.b64decode(found["data"][key]))


def _replaced(system: Kubectl, former: x509.Certificate) -> bool:
    return system.get("secret", AUTHORITY) is not None and _certificate(system, AUTHORITY, "ca.crt") != former


def _is_signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    return certificate.issuer == authority.subject and _verifies(certificate, authority)


def _verifies(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # noqa: BLE001 - the library names half a dozen
        return False
    return True
