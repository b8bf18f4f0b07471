"""Certificates of the bus: who signs whom, for which names, and when they are made anew."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from falcon_operator.bus import certs
from falcon_operator.bus.certs import Pair

NOW = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)


@pytest.fixture(scope="module")
def authority() -> Pair:
    return certs.new_authority(NOW)


def test_the_authority_signs_leaves_only(authority: Pair) -> None:
    cert = x509.load_pem_x509_certificate(authority.cert)
    constraints = cert.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (constraints.ca, constraints.path_length) == (True, 0)
    assert certs.problem(authority, authority.cert, NOW) == ""


def test_a_client_certificate_names_its_user_and_cannot_serve(authority: Pair) -> None:
    pair = certs.issue_client(authority, "0f3a", NOW)
    cert = x509.load_pem_x509_certificate(pair.cert)
    assert [attribute.value for attribute in cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["0f3a"]
    usages = cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usages) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert certs.problem(pair, authority.cert, NOW) == ""


def test_a_jobs_certificate_is_for_both_sides_and_names_no_host(authority: Pair) -> None:
    pair = certs.issue_agents(authority, "0f3a", NOW)
    cert = x509.load_pem_x509_certificate(pair.cert)
    assert [attribute.value for attribute in cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["0f3a"]
    usages = cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usages) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    with pytest.raises(x509.ExtensionNotFound):
        cert.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert certs.problem(pair, authority.cert, NOW) == ""


def test_the_server_certificate_has_its_names_and_serves_between_members_too(authority: Pair) -> None:
    pair = certs.issue_server(authority, ["etcd.ns.svc", "*.headless.ns.svc", "10.0.0.1"], NOW)
    cert = x509.load_pem_x509_certificate(pair.cert)
    sans = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert sans.get_values_for_type(x509.DNSName) == ["etcd.ns.svc", "*.headless.ns.svc"]
    assert [str(address) for address in sans.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "127.0.0.1"]
    usages = cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usages) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}


def test_a_certificate_is_made_anew_for_a_new_name_and_not_for_a_name_that_went(authority: Pair) -> None:
    pair = certs.issue_server(authority, ["a", "b"], NOW)
    assert certs.problem(pair, authority.cert, NOW, names=["a"]) == ""
    assert "c" in certs.problem(pair, authority.cert, NOW, names=["a", "c"])


def test_a_certificate_is_renewed_with_a_third_of_its_life_left(authority: Pair) -> None:
    pair = certs.issue_client(authority, "u", NOW)
    assert certs.problem(pair, authority.cert, NOW + 240 * DAY) == ""
    assert "renew" in certs.problem(pair, authority.cert, NOW + 245 * DAY)
    assert certs.renew_at(pair.cert) - NOW == pytest.approx(365 * DAY * 2 / 3, abs=DAY)


@pytest.mark.parametrize("pair", [Pair(b"", b""), Pair(b"nonsense", b"nonsense")])
def test_what_cannot_be_read_is_a_problem_not_a_crash(authority: Pair, pair: Pair) -> None:
    assert "cannot be read" in certs.problem(pair, authority.cert, NOW)


def test_another_authoritys_certificate_and_a_foreign_key_are_found_out(authority: Pair) -> None:
    other_authority = certs.new_authority(NOW)
    pair, second = certs.issue_client(other_authority, "u", NOW), certs.issue_client(authority, "u", NOW)
    assert "not signed by the authority" in certs.problem(pair, authority.cert, NOW)
    assert "do not belong together" in certs.problem(Pair(second.cert, pair.key), authority.cert, NOW)


def _with_password(pair: Pair) -> bytes:
    key = serialization.load_pem_private_key(pair.key, None)
    form, lock = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"password")
    return key.private_bytes(serialization.Encoding.PEM, form, lock)


def _of_an_unknown_kind(pair: Pair) -> bytes:
    key = serialization.load_pem_private_key(pair.key, None)
    der = key.private_bytes(serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    curve = bytes.fromhex("06082a8648ce3d030107")  # the OID of P-256
    assert curve in der
    body = base64.encodebytes(der.replace(curve, curve[:-1] + b"\x7f"))
    return b"-----BEGIN PRIVATE KEY-----\n" + body + b"-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize("spoil", [_with_password, _of_an_unknown_kind])
def test_a_key_that_the_library_does_not_read_is_a_problem_and_signs_nothing(
    authority: Pair, spoil: Callable[[Pair], bytes]
) -> None:
    spoilt = Pair(authority.cert, spoil(authority))
    assert "cannot be read" in certs.problem(spoilt, authority.cert, NOW)
    assert not certs.can_sign(spoilt, NOW)
    with pytest.raises(ValueError, match=r"ca\.key: cannot be read"):
        certs.issue_client(spoilt, "root", NOW)
