"""Endpoints and TLS settings: what is accepted, and what the refusal of the rest says."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from falcon_etcd import Client, Closed, Tls
from falcon_etcd._pool import choose, parse_endpoint


@pytest.mark.parametrize(
    ("endpoint", "tls", "address"),
    [
        ("etcd:2379", False, "etcd:2379"),
        ("etcd:2379", True, "etcd:2379"),
        ("http://10.0.0.1:2379", False, "10.0.0.1:2379"),
        ("https://etcd.falcon-system.svc:2379", True, "etcd.falcon-system.svc:2379"),
        ("[::1]:2379", False, "[::1]:2379"),
    ],
)
def test_accepted(endpoint: str, tls: bool, address: str) -> None:
    assert parse_endpoint(endpoint, tls=tls) == address


@pytest.mark.parametrize(
    ("endpoint", "tls", "says"),
    [
        ("etcd", False, "is not host:port; write for example"),
        (":2379", False, "is not host:port"),
        ("etcd:port", False, "is not host:port"),
        ("http://etcd:2379/", False, "is not host:port"),
        ("https://etcd:2379", False, "pass tls=Tls"),
        ("http://etcd:2379", True, "write https:// or leave tls out"),
        ("unix:///run/etcd:0", False, "scheme 'unix'; write host:port"),
    ],
)
def test_refused(endpoint: str, tls: bool, says: str) -> None:
    with pytest.raises(ValueError, match=r"^endpoints: ") as caught:
        parse_endpoint(endpoint, tls=tls)
    assert says in str(caught.value)


READY, FAILED = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE
IDLE, CONNECTING = grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        ([(READY, False), (READY, False)], 0),
        ([(FAILED, False), (READY, False)], 1),
        ([(IDLE, False), (CONNECTING, False)], None),
        ([(READY, True), (READY, False)], 1),
        ([(READY, True), (CONNECTING, False)], None),
        ([(READY, True), (IDLE, False)], None),
        ([(READY, True), (FAILED, False)], 0),
        ([(READY, True)], 0),
        ([(CONNECTING, True), (READY, True)], 1),
        ([(CONNECTING, True), (FAILED, False)], None),
    ],
)
def test_a_demoted_endpoint_is_the_last_resort(
    candidates: list[tuple[grpc.ChannelConnectivity, bool]], chosen: int | None
) -> None:
    assert choose(candidates) == chosen


def test_no_endpoints_and_no_time_are_refused() -> None:
    with pytest.raises(ValueError, match="endpoints: the list is empty"):
        Client([])
    with pytest.raises(ValueError, match="call_timeout_seconds: 0 is not above 0"):
        Client(["etcd:2379"], call_timeout_seconds=0)


def test_a_certificate_needs_its_key(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tls: cert and key belong together"):
        Tls(ca=tmp_path / "ca", cert=tmp_path / "cert")


async def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("")
    client = Client(["etcd:2379"], Tls(ca=tmp_path / "ca", cert=tmp_path / "cert", key=tmp_path / "key"))
    with pytest.raises(ValueError, match=r"tls\.key: .*/key: No such file or directory; give the path"):
        await client.__aenter__()


async def test_a_client_that_is_not_open_says_so() -> None:
    with pytest.raises(Closed, match=r"etcd get /a: the client is not open \(use the client inside `async with`\)"):
        await Client(["etcd:2379"]).get("/a")


async def test_the_status_of_a_stranger_is_refused() -> None:
    with pytest.raises(ValueError, match="endpoint: other:1 is none of etcd:2379"):
        await Client(["etcd:2379"]).status("other:1")
