"""Issue the cluster's certificates, again at every start: a CA, the API server's, and one for each component."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dev.cluster.layout import API_PORT, GATEWAY, PKI, SERVICE_API

_LIFE = datetime.timedelta(days=30)


class Authority:
    """The cluster's CA."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("falcon-dev-cluster")
        self._certificate = self._build(self._name, self._key.public_key(), ca=True, hosts=())
        _write(PKI / "ca.crt", self._certificate.public_bytes(serialization.Encoding.PEM))
        _write(PKI / "ca.key", _pem(self._key))

    def issue(self, file: str, common_name: str, organisation: str = "", hosts: Sequence[str] = ()) -> None:
        """Write ``<file>.crt`` and ``<file>.key``; ``hosts`` become subject alternative names."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._build(_name(common_name, organisation), key.public_key(), ca=False, hosts=hosts)
        _write(PKI / f"{file}.crt", made.public_bytes(serialization.Encoding.PEM))
        _write(PKI / f"{file}.key", _pem(key))

    def _build(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, ca: bool, hosts: Sequence[str]
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            # Clocks of the components may differ a little.
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + _LIFE)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if not ca:
            usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_alternative(h) for h in hosts]), critical=False
            )
        return builder.sign(self._key, hashes.SHA256())


def write_kubeconfig(path: Path, certificate: str) -> None:
    """Write a self-contained kubeconfig for one client certificate (JSON is YAML)."""

    def inline(file: str) -> str:
        return base64.b64encode((PKI / file).read_bytes()).decode()

    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "falcon",
                "cluster": {
                    "server": f"https://{GATEWAY}:{API_PORT}",
                    "certificate-authority-data": inline("ca.crt"),
                },
            }
        ],
        "users": [
            {
                "name": certificate,
                "user": {
                    "client-certificate-data": inline(f"{certificate}.crt"),
                    "client-key-data": inline(f"{certificate}.key"),
                },
            }
        ],
        "contexts": [{"name": "falcon", "context": {"cluster": "falcon", "user": certificate}}],
        "current-context": "falcon",
    }
    _write(path, json.dumps(config, indent=1).encode())


def issue_all(node_names: Sequence[str]) -> None:
    """Issue all certificates and keys that the control plane and the nodes present or check."""
    authority = Authority()
    hosts = (
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "localhost",
        GATEWAY,
        SERVICE_API,
        "127.0.0.1",
    )
    authority.issue("apiserver", "kube-apiserver", hosts=hosts)
    authority.issue("admin", "admin", "system:masters")
    authority.issue("controller-manager", "system:kube-controller-manager")
    authority.issue("scheduler", "system:kube-scheduler")
    authority.issue("proxy", "system:kube-proxy", "system:node-proxier")
    for name in node_names:
        # The API server's node authorizer grants a kubelet its rights by this user and group.
        authority.issue(f"kubelet-{name}", f"system:node:{name}", "system:nodes")
    service_accounts = ec.generate_private_key(ec.SECP256R1())
    _write(PKI / "sa.key", _pem(service_accounts))
    public = service_accounts.public_key()
    _write(
        PKI / "sa.pub",
        public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(common_name: str, organisation: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organisation:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
    return x509.Name(parts)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(content)
