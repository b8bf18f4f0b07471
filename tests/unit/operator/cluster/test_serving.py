"""The certificate of a port of the operator's: who signs it while one authority replaces another."""

from __future__ import annotations

import datetime as dt
import ssl
from pathlib import Path
from typing import Any

from falcon_operator.base.clock import SystemClock
from falcon_operator.bus import certs
from falcon_operator.cluster.certificates.rotation import SPREAD_SECONDS
from falcon_operator.cluster.certificates.serving import ServedCertificate, ServingCertificates
from tests.world.secrets import Secrets

NOW = dt.datetime(2026, 11, 30, tzinfo=dt.UTC)
NAMES = ("falcon-metrics.falcon.svc",)
AUTHORITY, LEAF = "falcon-metrics-ca", "falcon-metrics-tls"


def kept(secrets: Any) -> ServingCertificates:
    return ServingCertificates(secrets, "falcon", "falcon-metrics", NAMES, certs.METRICS)


def _authority(secrets: Secrets) -> bytes:
    return secrets.files("falcon", AUTHORITY)["ca.crt"]


async def test_the_certificate_has_the_names_of_the_port_and_is_made_once() -> None:
    secrets = Secrets()
    pair = await kept(secrets).ensure(NOW)
    assert certs.problem(pair, _authority(secrets), NOW, names=NAMES) == ""
    assert await kept(secrets).ensure(NOW) == pair
    assert await kept(secrets).read() == pair
    assert secrets.files("falcon", LEAF)["ca.crt"] == _authority(secrets)


async def test_a_new_authority_signs_only_when_clients_have_had_time_to_read_it() -> None:
    secrets = Secrets()
    pairs = kept(secrets)
    first = await pairs.ensure(NOW)
    former = _authority(secrets)
    secrets.delete("falcon", AUTHORITY)
    assert await pairs.ensure(NOW) == first
    newest = _authority(secrets)
    both = certs.authorities(secrets.files("falcon", LEAF)["ca.crt"], NOW)
    assert both == [*certs.authorities(newest, NOW), *certs.authorities(former, NOW)]
    assert await pairs.ensure(NOW + dt.timedelta(seconds=60)) == first
    later = NOW + dt.timedelta(seconds=60 + SPREAD_SECONDS)
    second = await pairs.ensure(later)
    assert second != first
    assert certs.problem(second, newest, later, names=NAMES) == ""
    assert "former.key" not in secrets.files("falcon", AUTHORITY), "it signs no more"


async def test_a_standby_shows_what_the_leader_has_made_and_writes_nothing(tmp_path: Path) -> None:
    secrets = Secrets()
    standby = ServedCertificate(kept(secrets), lambda: False, SystemClock(), tmp_path / "standby")
    assert not await standby.load()
    assert secrets.writes == 0
    leader = ServedCertificate(kept(secrets), lambda: True, SystemClock(), tmp_path / "leader")
    assert await leader.load()
    written = secrets.writes
    assert await standby.load()
    assert secrets.writes == written
    assert isinstance(standby.context, ssl.SSLContext)


async def test_what_is_loaded_stays_while_the_secret_holds_nothing_of_use(tmp_path: Path) -> None:
    secrets = Secrets()
    await kept(secrets).ensure(NOW)
    standby = ServedCertificate(kept(secrets), lambda: False, SystemClock(), tmp_path / "tls")
    assert await standby.load()
    loaded = standby.context
    secrets.write("falcon", LEAF, {"tls.crt": b"no certificate", "tls.key": b"no key"})
    assert await standby.load()
    assert standby.context is loaded
