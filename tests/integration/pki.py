"""A certificate authority for tests: one CA, server and client certificates on demand."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Issued:
    """PEM files of one certificate."""

    cert: Path
    key: Path


class Pki:
    """Certificates under ``root``, made once per name."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._root = root
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("falcon test CA")
        authority = _builder(self._name, self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.ca = root / "ca.pem"
        self.ca.write_bytes(_pem(authority.sign(self._key, hashes.SHA256())))

    def server(self, host: str) -> Issued:
        """Issue a certificate for ``host`` and 127.0.0.1; valid as a client, too: etcd's gateway calls etcd with it."""
        names = [x509.DNSName(host), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return self._issue(f"server-{host}", host, ExtendedKeyUsageOID.SERVER_AUTH, names)

    def client(self, common_name: str) -> Issued:
        """Issue a certificate for the etcd user ``common_name``."""
        return self._issue(f"client-{common_name}", common_name, ExtendedKeyUsageOID.CLIENT_AUTH, [])

    def _issue(
        self, stem: str, common_name: str, usage: x509.ObjectIdentifier, names: list[x509.GeneralName]
    ) -> Issued:
        issued = Issued(self._root / f"{stem}.pem", self._root / f"{stem}.key")
        if issued.cert.exists():
            return issued
        usages = [usage, ExtendedKeyUsageOID.CLIENT_AUTH] if names else [usage]
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(common_name), self._name, key.public_key())
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        issued.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        issued.cert.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        return issued


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID)
        .not_valid_after(now + _VALID)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
