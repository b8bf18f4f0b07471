"""Certificates in Secrets: they are made once, renewed in time, and it is known when each expires."""

from __future__ import annotations

import base64
import datetime as dt
from typing import Any

import pytest

from falcon_operator.bus import certs
from falcon_operator.cluster.certificates.stored_pairs import Leaf, StoredPairs
from falcon_operator.cluster.secrets import CertificateStore, MissingSecret
from tests.world.secrets import Secrets

NOW = dt.datetime(2026, 11, 30, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)


async def _ensure(pairs: StoredPairs, now: dt.datetime) -> certs.Pair:
    authority = (await pairs.authority("ca", certs.WEBHOOK, now)).newest
    leaf = Leaf("tls", ("a.svc",), lambda: certs.issue_server(authority, ("a.svc",), now))
    return await pairs.leaf(leaf, {"ca.crt": authority.cert}, now)


async def test_when_each_certificate_expires_is_known_from_its_making_and_from_its_reading() -> None:
    secrets: Any = Secrets()
    maker, reader = StoredPairs(secrets, "n"), StoredPairs(secrets, "n")
    made = await _ensure(maker, NOW)
    assert await _ensure(reader, NOW) == made
    assert secrets.writes == 2
    days = {"ca": certs.AUTHORITY_DAYS, "tls": certs.LEAF_DAYS}
    assert maker.expiries == {name: pytest.approx((NOW + count * DAY).timestamp()) for name, count in days.items()}
    assert reader.expiries == maker.expiries


async def test_a_renewal_moves_the_expiry() -> None:
    secrets: Any = Secrets()
    pairs = StoredPairs(secrets, "n")
    first = await _ensure(pairs, NOW)
    later = NOW + (certs.LEAF_DAYS - 1) * DAY
    assert await _ensure(pairs, later) != first
    assert pairs.expiries["tls"] == pytest.approx((later + certs.LEAF_DAYS * DAY).timestamp())


LEAVES = ("falcon-etcd-server", "falcon-etcd-root", "falcon-gateway-tls")


def _file(secrets: Secrets, name: str, file: str) -> bytes:
    return base64.b64decode(secrets.stored[f"/api/v1/namespaces/falcon/secrets/{name}"]["data"][file])


@pytest.mark.parametrize("deleted", LEAVES)
async def test_a_certificate_that_was_deleted_is_made_again_and_no_other(deleted: str) -> None:
    secrets = Secrets()
    store = CertificateStore(secrets, "falcon", "falcon-etcd", "falcon")  # type: ignore[arg-type]
    before = await store.ensure(("etcd",), ("gateway",), NOW)
    certificates = {name: _file(secrets, name, "tls.crt") for name in LEAVES}
    del secrets.stored[f"/api/v1/namespaces/falcon/secrets/{deleted}"]
    after = await store.ensure(("etcd",), ("gateway",), NOW)
    assert (after.control, after.jobs) == (before.control, before.jobs)
    for name in LEAVES:
        assert (_file(secrets, name, "tls.crt") != certificates[name]) == (name == deleted)
        pair = certs.Pair(_file(secrets, name, "tls.crt"), _file(secrets, name, "tls.key"))
        assert certs.problem(pair, after.control, NOW) == ""
    assert [(repair.secret, repair.was_missing) for repair in store.take_repairs()] == [(deleted, True)]
    assert store.take_repairs() == []


async def test_a_key_that_does_not_fit_the_owners_authority_is_said_and_not_used() -> None:
    secrets = Secrets()
    store = CertificateStore(secrets, "falcon", "falcon-etcd", "falcon")  # type: ignore[arg-type]
    owned, other = certs.new_authority(NOW), certs.new_authority(NOW)
    root = certs.issue_client(owned, certs.ROOT_USER, NOW)
    secrets.write("falcon", "falcon-etcd-root", {"ca.crt": owned.cert, "tls.crt": root.cert, "tls.key": root.key})
    secrets.write("falcon", "falcon-etcd-ca", {"ca.crt": owned.cert + other.cert, "ca.key": other.key})
    with pytest.raises(MissingSecret, match=r"falcon-etcd-ca: ca\.key must be .* of the first certificate in ca\.crt"):
        await store.external(("gateway",), NOW)
    secrets.write("falcon", "falcon-etcd-ca", {"ca.crt": owned.cert + other.cert, "ca.key": owned.key})
    await store.external(("gateway",), NOW)
    files = secrets.files("falcon", "falcon-gateway-tls")
    assert certs.problem(certs.Pair(files["tls.crt"], files["tls.key"]), owned.cert, NOW) == ""


@pytest.mark.parametrize("with_key", [True, False])
async def test_the_certificates_that_the_owner_of_an_etcd_has_to_renew_have_an_expiry_too(with_key: bool) -> None:
    """No operator renews them, so that a metric is all that warns."""
    secrets = Secrets()
    store = CertificateStore(secrets, "falcon", "falcon-etcd", "falcon")  # type: ignore[arg-type]
    owned = certs.new_authority(NOW)
    root = certs.issue_client(owned, certs.ROOT_USER, NOW)
    secrets.write("falcon", "falcon-etcd-root", {"ca.crt": owned.cert, "tls.crt": root.cert, "tls.key": root.key})
    secrets.write("falcon", "falcon-etcd-ca", {"ca.crt": owned.cert, **({"ca.key": owned.key} if with_key else {})})
    if not with_key:
        gateway = certs.issue_server(owned, ("gateway",), NOW)
        secrets.write("falcon", "falcon-gateway-tls", {"tls.crt": gateway.cert, "tls.key": gateway.key})
    await store.external(("gateway",), NOW)
    days = {"ca": certs.AUTHORITY_DAYS, "root": certs.LEAF_DAYS}
    expected = {f"falcon-etcd-{name}": pytest.approx((NOW + count * DAY).timestamp()) for name, count in days.items()}
    assert {name: store.expiries.get(name) for name in expected} == expected
