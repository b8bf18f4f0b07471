"""Users by client certificate: each job's agent may write its reports and read its commands, and nothing else."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from falcon_etcd import (
    AlreadyExists,
    AuthStatus,
    Client,
    NotFound,
    Op,
    Permission,
    PermissionDenied,
    Tls,
    Unauthenticated,
    Unavailable,
    WatchEvent,
    _pool,
)
from tests.integration.etcd.watching import watching
from tests.integration.etcd_server import EtcdServer
from tests.integration.pki import Pki
from tests.integration.sockets import connections_to

OURS = "/falcon/v1/ns/job/uid-1/"
THEIRS = "/falcon/v1/ns/job/uid-2/"


async def add_job(root: Client, uid: str, prefix: str) -> None:
    """Add the user and role of one job, as the operator makes them."""
    await root.auth.add_role(uid)
    await root.auth.grant_prefix(uid, f"{prefix}reports/", "readwrite")
    await root.auth.grant_prefix(uid, f"{prefix}commands/", "read")
    await root.auth.add_user(uid)
    await root.auth.grant_role(uid, uid)


async def enable(root: Client) -> None:
    await root.auth.add_user("root")
    await root.auth.grant_role("root", "root")
    await root.auth.enable()


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[EtcdServer]:
    """Yield an etcd with TLS, authentication on, and users root, uid-1 and uid-2."""
    server = EtcdServer(tmp_path, pki=Pki(tmp_path / "pki"))
    server.start()
    async with server.client("root") as root:
        await add_job(root, "uid-1", OURS)
        await add_job(root, "uid-2", THEIRS)
        await root.auth.add_role("root")
        await enable(root)
    yield server
    server.kill()


async def test_an_agent_reports_and_reads_its_commands(secured: EtcdServer) -> None:
    async with secured.client("root") as root, secured.client("uid-1") as agent:
        async with await agent.lease(3) as lease:
            await agent.put(f"{OURS}reports/pod/alive", b"", lease.id)
            await agent.put(f"{OURS}reports/pod/summary", b"{}")
            async with watching(agent, f"{OURS}commands/") as commands:
                await root.put(f"{OURS}commands/plan", b"restart")
                await commands.until_key(f"{OURS}commands/plan")
            await asyncio.sleep(4.5)
            assert await root.get(f"{OURS}reports/pod/alive") is not None
        assert await root.get(f"{OURS}reports/pod/alive") is None


async def test_an_agent_can_do_nothing_else(secured: EtcdServer) -> None:
    async with secured.client("root") as root, secured.client("uid-1") as agent:
        await root.put(f"{THEIRS}reports/pod/summary", b"theirs")
        theirs = f"{THEIRS}reports/pod/summary"
        lease = await root.lease(5)
        await root.put(f"{THEIRS}reports/pod/alive", b"", lease.id)
        refused = [
            agent.put(theirs, b"mine"),
            agent.put(f"{OURS}commands/plan", b"mine"),
            agent.put("/falcon/leader", b"mine"),
            agent.get(theirs),
            agent.get_prefix("/falcon/v1/"),
            agent.get_prefix(""),
            agent.delete(theirs),
            agent.delete_prefix("/falcon/"),
            agent.txn(success=[Op.put(f"{OURS}reports/x", b""), Op.put(theirs, b"mine")]),
            agent.put(f"{OURS}reports/x", b"", lease.id),
            agent.revoke(lease.id),
            agent.auth.status(),
            agent.auth.add_user("mallory"),
            agent.auth.grant_prefix("uid-1", "/", "readwrite"),
            agent.auth.disable(),
        ]
        for attempt in refused:
            with pytest.raises(PermissionDenied, match="grant the prefix"):
                await attempt
        kv = await root.get(theirs)
        assert kv is not None
        assert kv.value == b"theirs"
        assert await root.get(f"{OURS}reports/x") is None
        await lease.close()


async def test_a_certificate_without_user_may_do_nothing(secured: EtcdServer) -> None:
    async with secured.client("stranger") as stranger:
        with pytest.raises(PermissionDenied, match="common name"):
            await stranger.get(f"{OURS}reports/pod/summary")


async def test_a_deleted_job_is_shut_out_at_once(secured: EtcdServer) -> None:
    async with secured.client("root") as root, secured.client("uid-1") as agent:
        await agent.put(f"{OURS}reports/a", b"")
        await root.auth.delete_user("uid-1")
        await root.auth.delete_role("uid-1")
        with pytest.raises(PermissionDenied):
            await agent.put(f"{OURS}reports/a", b"")
        await add_job(root, "uid-1", OURS)
        await agent.put(f"{OURS}reports/a", b"")


async def test_lost_data_turns_authentication_off_and_clients_notice(secured: EtcdServer) -> None:
    async with secured.client("root") as root, secured.client("uid-1") as agent:
        assert (await root.auth.status()).enabled
        async with watching(agent, f"{OURS}commands/") as commands:
            await agent.put(f"{OURS}reports/a", b"")
            secured.wipe()
            secured.start()
            assert await root.auth.status() == AuthStatus(enabled=False, revision=1)
            assert await root.auth.list_users() == ()
            assert await agent.get(f"{THEIRS}reports/a") is None
            await agent.put(f"{THEIRS}reports/a", b"")
            await add_job(root, "uid-1", OURS)  # before authentication is on, or agents that live are refused meanwhile
            await root.auth.add_role("root")
            await enable(root)
            assert (await root.auth.status()).enabled
            with pytest.raises(PermissionDenied):
                await agent.put(f"{THEIRS}reports/a", b"")
            await agent.put(f"{OURS}reports/a", b"")
            await root.put(f"{OURS}commands/plan", b"")
            await commands.until_key(f"{OURS}commands/plan")


async def test_users_roles_and_permissions_are_listed(secured: EtcdServer) -> None:
    async with secured.client("root") as root:
        assert await root.auth.list_users() == ("root", "uid-1", "uid-2")
        assert await root.auth.list_roles() == ("root", "uid-1", "uid-2")
        assert await root.auth.user_roles("uid-1") == ("uid-1",)
        await root.auth.grant_range("uid-1", "/one", "", "write")
        assert set(await root.auth.permissions("uid-1")) == {
            Permission("readwrite", f"{OURS}reports/", f"{OURS}reports0"),
            Permission("read", f"{OURS}commands/", f"{OURS}commands0"),
            Permission("write", "/one", ""),
        }
        await root.auth.revoke_prefix("uid-1", f"{OURS}commands/")
        assert len(await root.auth.permissions("uid-1")) == 2
        await root.auth.revoke_role("uid-1", "uid-1")
        assert await root.auth.user_roles("uid-1") == ()
        await root.auth.disable()
        assert not (await root.auth.status()).enabled


async def test_what_exists_or_does_not_is_told_apart(secured: EtcdServer) -> None:
    async with secured.client("root") as root:
        for again in (root.auth.add_user("uid-1"), root.auth.add_role("uid-1")):
            with pytest.raises(AlreadyExists):
                await again
        for absent in (
            root.auth.delete_user("nobody"),
            root.auth.delete_role("nothing"),
            root.auth.grant_role("uid-1", "nothing"),
            root.auth.grant_role("nobody", "uid-1"),
            root.auth.revoke_role("uid-1", "uid-2"),
            root.auth.revoke_prefix("uid-1", "/nothing/"),
        ):
            with pytest.raises(NotFound):
                await absent


async def test_enabling_needs_root(etcd: EtcdServer, client: Client) -> None:
    with pytest.raises(NotFound, match="root user does not exist"):
        await client.auth.enable()
    await client.auth.add_user("root")
    with pytest.raises(NotFound, match="root user does not have root role"):
        await client.auth.enable()
    assert not (await client.auth.status()).enabled


async def test_a_client_without_certificate_is_nobody(etcd: EtcdServer, client: Client) -> None:
    await client.auth.add_role("root")
    await enable(client)
    with pytest.raises(Unauthenticated, match="client certificate whose common name"):
        await client.get("/a")


async def test_certificates_are_checked_both_ways(secured: EtcdServer, tmp_path: Path) -> None:
    ours, theirs = secured.pki, Pki(tmp_path / "other")
    assert ours is not None
    issued, foreign = ours.client("uid-1"), theirs.client("uid-1")
    for tls in (
        Tls(ca=theirs.ca, cert=issued.cert, key=issued.key),
        Tls(ca=ours.ca, cert=foreign.cert, key=foreign.key),
        Tls(ca=ours.ca),
        Tls(ca=ours.ca, cert=issued.cert, key=issued.key, server_name="elsewhere"),
        None,
    ):
        async with Client(secured.endpoints, tls, call_timeout_seconds=0.5) as client:
            with pytest.raises(Unavailable, match="certificates"):
                await client.get(f"{OURS}reports/a")
    tls = Tls(ca=ours.ca, cert=issued.cert, key=issued.key, server_name="localhost")
    async with Client(secured.endpoints, tls) as client:
        assert await client.get(f"{OURS}reports/a") is None


async def test_a_rotated_certificate_is_taken_up(secured: EtcdServer, tmp_path: Path) -> None:
    """The files change under the client; the next connection uses them."""
    assert secured.pki is not None
    tls = Tls(ca=tmp_path / "ca", cert=tmp_path / "cert", key=tmp_path / "key")
    assert tls.cert is not None
    assert tls.key is not None
    for pki in (Pki(tmp_path / "other"), secured.pki):
        shutil.copy(pki.ca, tls.ca)
        shutil.copy(pki.client("uid-1").cert, tls.cert)
        shutil.copy(pki.client("uid-1").key, tls.key)
        if pki is not secured.pki:
            client = Client(secured.endpoints, tls, call_timeout_seconds=3.0)
            await client.__aenter__()
            with pytest.raises(Unavailable):
                await client.get(f"{OURS}reports/a")
    assert await client.get(f"{OURS}reports/a") is None
    await client.close()


async def test_a_connection_ends_some_time_after_its_certificate_was_replaced(
    secured: EtcdServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Etcd does not end what began with a former certificate, so the client does; its watch misses nothing."""
    monkeypatch.setattr(_pool, "LOOK_SECONDS", 0.1)
    assert secured.pki is not None
    tls = Tls(ca=tmp_path / "ca", cert=tmp_path / "cert", key=tmp_path / "key")
    _place(tls, secured.pki)
    [endpoint] = secured.endpoints
    own = connections_to(endpoint)
    async with Client([endpoint], tls) as client, watching(client, f"{OURS}reports/") as recording:
        former = connections_to(endpoint) - own
        assert len(former) == 1
        _place(tls, Pki(tmp_path / "foreign"), and_trust=secured.pki)
        for number in range(10):  # etcd refuses the new certificate: the present connection stays
            await client.put(f"{OURS}reports/{number}", b"")
            await asyncio.sleep(0.1)
        assert former <= connections_to(endpoint)
        (secured.pki.ca.parent / "client-uid-1.pem").unlink()  # so that another one is made
        _place(tls, secured.pki)
        async with asyncio.timeout(60):
            while former & connections_to(endpoint):
                number += 1
                await client.put(f"{OURS}reports/{number}", b"")
                await asyncio.sleep(0.1)
        await client.put(f"{OURS}reports/last", b"")
        await recording.until_key(f"{OURS}reports/last")
        assert len(recording.changes) == number + 2
        assert len(recording.listings) == 1


async def test_a_connection_ends_when_its_authority_is_trusted_no_more(
    secured: EtcdServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pool, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(_pool, "CONNECT_SECONDS", 0.5)
    assert secured.pki is not None
    tls = Tls(ca=tmp_path / "ca", cert=tmp_path / "cert", key=tmp_path / "key")
    _place(tls, secured.pki)
    [endpoint] = secured.endpoints
    own = connections_to(endpoint)
    async with Client([endpoint], tls, call_timeout_seconds=1.0) as client:
        await client.get(f"{OURS}reports/a")
        former = connections_to(endpoint) - own
        assert len(former) == 1
        _place(tls, Pki(tmp_path / "new"))
        async with asyncio.timeout(60):
            while former & connections_to(endpoint):  # noqa: ASYNC110 - the kernel has no event for it
                await asyncio.sleep(0.1)
        with pytest.raises(Unavailable):
            await client.get(f"{OURS}reports/a")


def _place(tls: Tls, pki: Pki, *, and_trust: Pki | None = None) -> None:
    """Write a client's files, each of them whole."""
    assert tls.cert is not None
    assert tls.key is not None
    issued = pki.client("uid-1")
    for source, target in (((and_trust or pki).ca, tls.ca), (issued.cert, tls.cert), (issued.key, tls.key)):
        shutil.copy(source, target.with_suffix(".new"))
        target.with_suffix(".new").replace(target)


async def test_a_watch_that_is_not_allowed_says_so(secured: EtcdServer) -> None:
    async with secured.client("uid-1") as agent:
        for start_revision in (None, 1):
            with pytest.raises(PermissionDenied):
                await anext(agent.watch_prefix(THEIRS, start_revision))
        async with secured.client("root") as root:
            revision = await root.put(f"{OURS}commands/plan", b"")
        async for event in agent.watch_prefix(f"{OURS}commands/", revision):
            assert isinstance(event, WatchEvent)
            break
