"""Issue the certificates of the bus: two authorities, server certificates, root's and one for each job.

The control authority signs the server certificates of etcd and of the gateways, and the client certificate of ``root``:
operator and gateways are that user in etcd, and the operator shows it to the gateways. etcd takes the common name as
the name of the user. The jobs' authority signs the certificates of the agents alone; the common name is the job's uid.
Only gateways and agents trust it, so nothing that it signs opens etcd, whatever name it has. Agents of a job know each
other by that name as well, on both sides of a connection. No agent takes such a certificate for a gateway's: those are
of the control authority.

etcd's members also use the server certificate between each other, so it is a client certificate as well. It names no
user that exists, and therefore allows nothing. That of the anomaly service is of the same kind: a server's towards the
operator, and a client's towards the gateways, which know it by its common name. Keys are ECDSA P-256.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
LEAF_DAYS = 365
RENEW_FRACTION = 1 / 3  # of a certificate's life: with no more left, it is renewed
BACKDATE = dt.timedelta(minutes=5)  # for clocks that are behind
ROOT_USER = "root"
ANOMALY_SERVICE = "anomalies"  # the common name by which gateways know the anomaly service; no user of etcd has it
# What the library raises for PEM that is none, for a key with a password, and for a key of an unknown kind.
_UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm)
# Names of authorities, for people.
CONTROL, JOBS = "falcon control authority", "falcon jobs' authority"
WEBHOOK, METRICS = "falcon webhook's authority", "falcon metrics port's authority"


class Pair(msgspec.Struct, frozen=True):
    """PEM of a certificate and of its key."""

    cert: bytes
    key: bytes


def new_authority(now: dt.datetime, name: str = CONTROL) -> Pair:
    """Make a self-signed authority that signs leaf certificates only."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = _builder(subject, subject, key.public_key(), now, AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return _pair(builder.sign(key, hashes.SHA256()), key)


def issue_server(
    authority: Pair, names: Sequence[str], now: dt.datetime, common_name: str = "falcon etcd server"
) -> Pair:
    """Issue a server's certificate for DNS names and IP addresses; the loopback address is always among them."""
    sans: list[x509.GeneralName] = [_san(name) for name in names]
    loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    if loopback not in sans:
        sans.append(loopback)
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return _issue(authority, common_name, usages, sans, now)


def issue_client(authority: Pair, user: str, now: dt.datetime) -> Pair:
    """Issue a certificate for ``user`` (the common name: at most 64 characters)."""
    return _issue(authority, user, [ExtendedKeyUsageOID.CLIENT_AUTH], [], now)


def issue_agents(authority: Pair, job_uid: str, now: dt.datetime) -> Pair:
    """Issue the certificate of a job's agents: clients of the gateways, and servers to each other."""
    return _issue(authority, job_uid, [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH], [], now)


def problem(pair: Pair, authority: bytes, now: dt.datetime, *, names: Sequence[str] = ()) -> str:
    """Return why the pair has to be made again; "" if it is good.

    Reasons: the pair cannot be read, key and certificate do not belong together, none of the authorities signed it,
    one of ``names`` is missing, or only the last third of its life is left.

    Args:
        authority: PEM of one authority or several.
    """
    try:
        cert = x509.load_pem_x509_certificate(pair.cert)
        key = serialization.load_pem_private_key(pair.key, None)
        signers = x509.load_pem_x509_certificates(authority)
        belong = key.public_key() == cert.public_key()
    except _UNREADABLE as error:
        return f"cannot be read: {error}"
    # Each may be valid by itself: the owner of an external etcd may have replaced one of the two alone.
    if not belong:
        return "key and certificate do not belong together"
    # After a change of the authority, peers no longer trust a certificate of the earlier one.
    if not any(_signed(cert, signer) for signer in signers):
        return "not signed by the authority"
    # Names follow from settings (namespace, Service), and a changed setting makes the old certificate useless.
    missing = {_san(name) for name in names} - set(_sans(cert))
    if missing:
        return f"names are missing: {', '.join(sorted(str(name.value) for name in missing))}"
    return "it is time to renew it" if now >= renew_at(pair.cert) else ""


def authorities(bundle: bytes, now: dt.datetime) -> list[bytes]:
    """Return the PEM of each certificate in a bundle that has not expired; none where it cannot be read."""
    try:
        found = x509.load_pem_x509_certificates(bundle)
    except ValueError:
        return []
    return [each.public_bytes(serialization.Encoding.PEM) for each in found if now < each.not_valid_after_utc]


def can_sign(authority: Pair, now: dt.datetime) -> bool:
    """Check whether an authority has not expired, and its key belongs to it."""
    try:
        cert = x509.load_pem_x509_certificate(authority.cert)
        key = serialization.load_pem_private_key(authority.key, None)
        return key.public_key() == cert.public_key() and now < cert.not_valid_after_utc
    except _UNREADABLE:
        return False


def made_unix(cert: bytes) -> float:
    """Return when the certificate was made, unix seconds. Raises ValueError when ``cert`` is no certificate."""
    return (x509.load_pem_x509_certificate(cert).not_valid_before_utc + BACKDATE).timestamp()


def expires_unix(cert: bytes) -> float:
    """Return when the certificate expires, unix seconds. Raises ValueError when ``cert`` is no certificate."""
    return x509.load_pem_x509_certificate(cert).not_valid_after_utc.timestamp()


def renew_at(cert: bytes) -> dt.datetime:
    """Return when to make a new certificate: when a third of this one's life is left.

    Raises ValueError when ``cert`` is no certificate.
    """
    loaded = x509.load_pem_x509_certificate(cert)
    life = loaded.not_valid_after_utc - loaded.not_valid_before_utc
    return loaded.not_valid_after_utc - life * RENEW_FRACTION


def _signed(cert: x509.Certificate, signer: x509.Certificate) -> bool:
    try:
        cert.verify_directly_issued_by(signer)
    except Exception:  # noqa: BLE001 - the library names half a dozen
        return False
    return True


def _issue(
    authority: Pair,
    common_name: str,
    usages: Sequence[x509.ObjectIdentifier],
    sans: Sequence[x509.GeneralName],
    now: dt.datetime,
) -> Pair:
    signer = x509.load_pem_x509_certificate(authority.cert)
    try:
        signer_key = serialization.load_pem_private_key(authority.key, None)
    except _UNREADABLE as error:
        raise ValueError(f"ca.key: cannot be read: {error}") from error
    if not isinstance(signer_key, ec.EllipticCurvePrivateKey):
        raise ValueError("ca.key: not an elliptic-curve key; give an ECDSA authority")
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(common_name), signer.subject, key.public_key(), now, LEAF_DAYS)
    # A leaf certificate of ours must not sign others.
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key()), critical=False
    )
    if sans:
        builder = builder.add_extension(x509.SubjectAlternativeName(sans), critical=False)
    return _pair(builder.sign(signer_key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: dt.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + dt.timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _san(name: str) -> x509.DNSName | x509.IPAddress:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _sans(cert: x509.Certificate) -> Sequence[x509.GeneralName]:
    try:
        return list(cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return []


def _pair(cert: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        cert.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
