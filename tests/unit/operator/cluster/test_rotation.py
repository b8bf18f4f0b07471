"""One authority replaces another: both are trusted, and no certificate is by one that somebody does not know yet."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import pytest

from falcon_operator.bus import certs
from falcon_operator.bus.certs import Pair
from falcon_operator.cluster.certificates.rotation import OVERLAP_SECONDS, SPREAD_SECONDS
from falcon_operator.cluster.secrets import CertificateStore
from tests.world.secrets import Secrets

NOW = dt.datetime(2026, 11, 30, tzinfo=dt.UTC)
SPREAD = dt.timedelta(seconds=SPREAD_SECONDS)
OVERLAP = dt.timedelta(seconds=OVERLAP_SECONDS)
LOOK = dt.timedelta(seconds=60)
LEAVES = ("falcon-etcd-server", "falcon-etcd-root", "falcon-gateway-tls")
CONTROL, JOBS = "falcon-etcd-ca", "falcon-jobs-ca"


class Installation:
    """Secrets, and the operator that keeps them; ``doubts`` is what etcd answers."""

    def __init__(self) -> None:
        self.secrets = Secrets()
        self.doubts: list[str] = []
        self.asked: list[Pair] = []
        self.now = NOW
        self.restart()

    def restart(self) -> None:
        """Begin another process of the operator: nothing is remembered."""
        self.store = CertificateStore(self.secrets, "falcon", "falcon-etcd", "falcon", (), self._doubts)  # type: ignore[arg-type]

    async def _doubts(self, authority: Pair, _: bytes) -> Sequence[str]:
        self.asked.append(authority)
        return self.doubts

    async def look(self, after: dt.timedelta = LOOK) -> None:
        self.now += after
        self.current = await self.store.ensure(("etcd",), ("gateway",), self.now)

    def file(self, name: str, file: str) -> bytes:
        return self.secrets.files("falcon", name)[file]

    def pair(self, name: str) -> Pair:
        return Pair(self.file(name, "tls.crt"), self.file(name, "tls.key"))

    def signed_by(self, authority: bytes) -> set[str]:
        return {name for name in LEAVES if certs.problem(self.pair(name), authority, self.now) == ""}


@pytest.fixture
async def installed() -> Installation:
    installation = Installation()
    await installation.look()
    return installation


async def _replaced(installed: Installation, by: str, secret: str = CONTROL) -> tuple[bytes, bytes]:
    """Replace an authority; return the former and the new certificate."""
    former = installed.file(secret, "ca.crt")
    if by == "age":
        installed.now += dt.timedelta(days=certs.AUTHORITY_DAYS * 2 // 3 - 100)
        await installed.look()  # renews the certificates that the authority has signed, long before the authority
        installed.now += dt.timedelta(days=110)
    else:
        installed.secrets.delete("falcon", secret)
    await installed.look()
    new = installed.file(secret, "ca.crt")
    assert new != former
    return former, new


@pytest.mark.parametrize("by", ["age", "deletion"])
async def test_both_authorities_are_trusted_before_anything_is_signed_by_the_new_one(
    installed: Installation, by: str
) -> None:
    former, new = await _replaced(installed, by)
    assert installed.signed_by(former) == set(LEAVES)
    for name in LEAVES:
        assert certs.authorities(installed.file(name, "ca.crt"), installed.now) == [new, former]
    await installed.look()  # sees that all bundles hold the new one
    await installed.look(SPREAD - LOOK)
    assert installed.signed_by(former) == set(LEAVES)
    assert "AuthorityReplaced" in installed.store.notes[0]
    assert CONTROL in installed.store.notes[0]
    await installed.look()
    assert installed.signed_by(new) == set(LEAVES)
    for name in LEAVES:
        assert certs.authorities(installed.file(name, "ca.crt"), installed.now) == [new, former]
    assert installed.store.notes == ()
    assert "former.key" not in installed.secrets.files("falcon", CONTROL)


async def test_the_former_authority_goes_after_the_overlap(installed: Installation) -> None:
    former, new = await _replaced(installed, "deletion")
    await installed.look()
    await installed.look(SPREAD)
    await installed.look(OVERLAP - SPREAD - 3 * LOOK)
    assert former in certs.authorities(installed.current.control, installed.now)
    await installed.look(3 * LOOK)
    assert installed.current.control == new
    assert {installed.file(name, "ca.crt") for name in LEAVES} == {new}
    assert installed.signed_by(new) == set(LEAVES)


async def test_nothing_is_signed_by_an_authority_that_etcd_has_not_read(installed: Installation) -> None:
    former, new = await _replaced(installed, "deletion")
    installed.doubts = ["etcd https://etcd:2379 has not read the new authority"]
    for _ in range(3):
        await installed.look(SPREAD)
    assert [each.cert for each in installed.asked] == [new, new]
    assert installed.signed_by(former) == set(LEAVES)
    assert installed.doubts[0] in installed.store.notes[0]
    installed.doubts = []
    await installed.look()
    assert installed.signed_by(new) == set(LEAVES)


async def test_another_process_goes_on_where_the_first_one_ended(installed: Installation) -> None:
    former, new = await _replaced(installed, "deletion")
    await installed.look(SPREAD)
    installed.restart()
    await installed.look(SPREAD)
    assert installed.signed_by(former) == set(LEAVES), "it has not waited itself"
    await installed.look(SPREAD)
    assert installed.signed_by(new) == set(LEAVES)
    installed.restart()
    await installed.look()
    assert installed.signed_by(new) == set(LEAVES), "it does not go back"
    await installed.look(SPREAD)
    await installed.look(OVERLAP)
    assert installed.current.control == new


async def test_a_certificate_that_is_due_meanwhile_is_by_the_former_authority(installed: Installation) -> None:
    former, _ = await _replaced(installed, "deletion")
    installed.secrets.delete("falcon", "falcon-gateway-tls")
    await installed.look()
    assert installed.signed_by(former) == set(LEAVES)


async def test_an_authority_deleted_while_no_operator_ran_leaves_its_certificates_in_use(
    installed: Installation,
) -> None:
    former = installed.file(CONTROL, "ca.crt")
    installed.secrets.delete("falcon", CONTROL)
    installed.restart()
    await installed.look()
    assert installed.signed_by(former) == set(LEAVES)
    assert former in certs.authorities(installed.current.control, installed.now)
    await installed.look()
    await installed.look(SPREAD)
    assert installed.signed_by(former) == set()


async def test_agents_certificates_change_once_gateways_trust_the_new_authority(installed: Installation) -> None:
    former, new = await _replaced(installed, "deletion", JOBS)
    assert installed.current.jobs.cert == former
    bundle = installed.file("falcon-gateway-tls", "jobs-ca.crt")
    assert certs.authorities(bundle, installed.now) == [new, former]
    assert installed.current.jobs_trusted == bundle
    await installed.look()
    await installed.look(SPREAD)
    assert installed.current.jobs.cert == new
    assert former in certs.authorities(installed.current.jobs_trusted, installed.now)
    await installed.look(OVERLAP)
    assert installed.current.jobs_trusted == new
    assert installed.asked == [], "etcd does not know this authority"


async def test_the_deletion_of_an_authority_is_known_as_a_repair(installed: Installation) -> None:
    installed.store.take_repairs()
    await _replaced(installed, "deletion")
    repairs = installed.store.take_repairs()
    assert (CONTROL, True) in [(repair.secret, repair.was_missing) for repair in repairs]


async def test_a_further_authority_is_trusted_with_its_direct_predecessor_alone(installed: Installation) -> None:
    known_to_others, second = await _replaced(installed, "deletion")
    await installed.look()
    await installed.look(SPREAD)
    assert installed.signed_by(second) == set(LEAVES)
    await installed.look(SPREAD)
    _, third = await _replaced(installed, "deletion")
    for name in LEAVES:
        assert certs.authorities(installed.file(name, "ca.crt"), installed.now) == [third, second]
    assert installed.signed_by(second) == set(LEAVES)
    await installed.look()
    await installed.look(SPREAD)
    assert installed.signed_by(third) == set(LEAVES)
    await installed.look(OVERLAP)
    assert installed.current.control == third
    assert known_to_others not in installed.current.control


async def test_what_is_older_stays_until_the_predecessors_certificates_have_been_read(installed: Installation) -> None:
    first, second = await _replaced(installed, "deletion")
    await installed.look()
    await installed.look(SPREAD)
    _, third = await _replaced(installed, "deletion")
    for wait, trusted in ((SPREAD - 2 * LOOK, [third, second, first]), (LOOK, [third, second])):
        await installed.look(wait)
        assert certs.authorities(installed.current.control, installed.now) == trusted
    assert installed.signed_by(second) == set(LEAVES)


async def test_an_authority_replaced_before_it_signed_leaves_the_signing_to_the_former_one(
    installed: Installation,
) -> None:
    former, _ = await _replaced(installed, "deletion")
    await _replaced(installed, "deletion")
    installed.secrets.delete("falcon", "falcon-gateway-tls")
    await installed.look()
    assert installed.signed_by(former) == set(LEAVES)


@pytest.mark.parametrize(("authority", "readers"), [(CONTROL, LEAVES), (JOBS, LEAVES[2:])])
async def test_an_authority_deleted_with_all_that_read_it_is_replaced_with_an_overlap(
    installed: Installation, authority: str, readers: Sequence[str]
) -> None:
    file = "ca.crt" if authority == CONTROL else "jobs-ca.crt"
    for name in readers:
        installed.secrets.delete("falcon", name)
    former, new = await _replaced(installed, "deletion", authority)
    for name in readers:
        assert certs.authorities(installed.file(name, file), installed.now) == [new, former]
    assert "former.key" in installed.secrets.files("falcon", authority)
    assert installed.signed_by(former if authority == CONTROL else installed.current.control) == set(LEAVES)
    assert (installed.current.jobs.cert == former) == (authority == JOBS)
    assert "AuthorityReplaced" in installed.store.notes[0]
    await installed.look()
    await installed.look(SPREAD - LOOK)
    assert installed.asked == [], "the bundles were not there for long enough"
    await installed.look()
    assert [each.cert for each in installed.asked] == ([new] if authority == CONTROL else [])
    assert (installed.current.jobs.cert == new) == (authority == JOBS)


async def test_an_authority_that_a_person_puts_in_its_place_is_spread_before_it_signs(installed: Installation) -> None:
    former = installed.file(CONTROL, "ca.crt")
    own = certs.new_authority(installed.now)
    installed.secrets.write("falcon", CONTROL, {"ca.crt": own.cert, "ca.key": own.key})
    await installed.look()
    files = installed.secrets.files("falcon", CONTROL)
    assert (files["ca.crt"], files["former.crt"]) == (own.cert, former)
    installed.secrets.delete("falcon", "falcon-gateway-tls")
    await installed.look()
    assert installed.signed_by(former) == set(LEAVES)
    await installed.look()
    await installed.look(SPREAD)
    assert installed.signed_by(own.cert) == set(LEAVES)
    assert "former.key" not in installed.secrets.files("falcon", CONTROL)


async def test_an_authority_that_a_person_restores_before_the_change_signs_on(installed: Installation) -> None:
    before = installed.secrets.files("falcon", CONTROL)
    await _replaced(installed, "deletion")
    installed.secrets.write("falcon", CONTROL, before)
    await installed.look()
    assert installed.secrets.files("falcon", CONTROL) == before
    assert installed.signed_by(before["ca.crt"]) == set(LEAVES)
