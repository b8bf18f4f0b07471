"""Certificates in Secrets: they are made once, renewed in time, and it is known when each expires."""

from __future__ import annotations

import base64
import datetime as dt
import json
from typing import Any

import pytest

from falcon_operator.base.ports import NotFound
from falcon_operator.bus import certs
from falcon_operator.cluster.certificates.stored_pairs import Leaf, StoredPairs
from falcon_operator.cluster.secrets import CertificateStore

NOW = dt.datetime(2026, 11, 30, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)


class Secrets:
    """The API server's Secrets, by path."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] = {}
        self.writes = 0

    async def call(self, method: str, path: str, *, body: Any = None) -> bytes:
        if method == "GET":
            if path not in self.stored:
                raise NotFound(path)
            return json.dumps(self.stored[path]).encode()
        self.writes += 1
        target = f"{path}/{body['metadata']['name']}" if method == "POST" else path
        self.stored[target] = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.writes)}}
        return b"{}"


async def _ensure(pairs: StoredPairs, now: dt.datetime) -> certs.Pair:
    authority = await pairs.authority("ca", certs.WEBHOOK, now)
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


@pytest.mark.parametrize("deleted", ["falcon-etcd-ca", "falcon-jobs-ca", *LEAVES])
async def test_a_secret_that_was_deleted_is_made_again_with_all_that_its_authority_signed(deleted: str) -> None:
    secrets = Secrets()
    store = CertificateStore(secrets, "falcon", "falcon-etcd", "falcon")  # type: ignore[arg-type]
    before = await store.ensure(("etcd",), ("gateway",), NOW)
    certificates = {name: _file(secrets, name, "tls.crt") for name in LEAVES}
    del secrets.stored[f"/api/v1/namespaces/falcon/secrets/{deleted}"]
    after = await store.ensure(("etcd",), ("gateway",), NOW)
    assert (after.control == before.control) == (deleted != "falcon-etcd-ca")
    assert (after.jobs == before.jobs) == (deleted != "falcon-jobs-ca")
    for name in LEAVES:
        is_new = deleted in (name, "falcon-etcd-ca")
        assert (_file(secrets, name, "tls.crt") != certificates[name]) == is_new
        pair = certs.Pair(_file(secrets, name, "tls.crt"), _file(secrets, name, "tls.key"))
        assert certs.problem(pair, after.control, NOW) == ""
    assert _file(secrets, "falcon-gateway-tls", "jobs-ca.crt") == after.jobs.cert
