"""Which pod of etcd is restarted so that it reads a new authority, and when none is."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from falcon_operator.base.clock import SystemClock
from falcon_operator.base.ports import Conflict, NotFound, Rejected
from falcon_operator.bus import certs
from falcon_operator.bus.certs import Pair
from falcon_operator.cluster.certificates import authorities
from falcon_operator.cluster.certificates.authorities import Authorities, behind
from falcon_operator.cluster.certificates.etcd_pods import EtcdPod, EtcdPods
from tests.unit.operator.base.test_settings import GOOD, load
from tests.world.secrets import Secrets

MEMBERS = tuple(f"https://falcon-etcd-{n}.falcon-etcd-headless.falcon.svc:2379" for n in range(3))


class Pods:
    """etcd's pods; ``restarted`` are the names of those that were deleted."""

    def __init__(self, age_seconds: float) -> None:
        now = dt.datetime.now(dt.UTC).timestamp()
        self.pods = [EtcdPod(f"falcon-etcd-{n}", "u", now - age_seconds, deleting=False) for n in range(3)]
        self.restarted: list[str] = []
        self.refusal: Exception | None = None

    async def list(self) -> list[EtcdPod]:
        return self.pods

    async def restart(self, pod: EtcdPod) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.restarted.append(pod.name)


async def _ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pods: Pods, *, refuse: set[str], away: frozenset[str] = frozenset()
) -> list[str]:
    """Return the doubts where these members refuse the new authority, and those do not answer."""
    asked, authority = _asked(tmp_path, monkeypatch, pods, refuse, away)
    return list(await asked._doubts(authority, authority.cert))


def _asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pods: Pods, refuse: set[str], away: frozenset[str] = frozenset()
) -> tuple[Any, Pair]:
    settings = load({**GOOD, "FALCON_ETCD_SELECTOR": "a=b", "FALCON_ETCD_ENDPOINTS": ",".join(MEMBERS)})
    asked: Any = Authorities(settings, Secrets(), None, SystemClock(), tmp_path)  # type: ignore[arg-type]
    asked._pods, asked._root = pods, "the certificate in use"

    async def refusal(endpoint: str, tls: object) -> str:
        if endpoint in away:
            return "no connection"
        return "" if tls == asked._root or endpoint not in refuse else "unknown authority"

    monkeypatch.setattr(authorities, "_refusal", refusal)
    return asked, certs.new_authority(dt.datetime.now(dt.UTC))


async def test_members_that_refuse_are_restarted_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pods = Pods(age_seconds=3600)
    doubts = await _ask(tmp_path, monkeypatch, pods, refuse={MEMBERS[1], MEMBERS[2]})
    assert pods.restarted == ["falcon-etcd-1"]
    assert len(doubts) == 2


async def test_no_member_is_restarted_while_another_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = Pods(age_seconds=3600)
    doubts = await _ask(tmp_path, monkeypatch, pods, refuse={MEMBERS[1]}, away=frozenset({MEMBERS[0]}))
    assert pods.restarted == []
    assert "does not answer" in doubts[0]


async def test_a_pod_that_is_younger_than_the_authority_is_not_restarted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = Pods(age_seconds=-2 * authorities.RESTART_SECONDS)
    [doubt] = await _ask(tmp_path, monkeypatch, pods, refuse={MEMBERS[1]})
    assert pods.restarted == []
    assert "restart its pod" in doubt


@pytest.mark.parametrize("error", [Rejected("a webhook says no"), Conflict("c"), NotFound("n"), OSError("o")])
async def test_a_restart_that_is_refused_is_a_doubt_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    pods = Pods(age_seconds=3600)
    pods.refusal = error
    [doubt] = await _ask(tmp_path, monkeypatch, pods, refuse={MEMBERS[1]})
    assert doubt.endswith(f"restart its pod ({error})")
    assert pods.restarted == []


async def test_a_member_is_restarted_once_for_an_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its pod stays older than the authority: the clock by which that was made is ahead of the API server's.
    pods = Pods(age_seconds=3600)
    asked, authority = _asked(tmp_path, monkeypatch, pods, refuse={MEMBERS[1]})
    [first] = await asked._doubts(authority, authority.cert)
    [second] = await asked._doubts(authority, authority.cert)
    assert pods.restarted == ["falcon-etcd-1"]
    assert "was restarted, so that" in first
    assert "still refuses" in second
    another = certs.new_authority(dt.datetime.now(dt.UTC))
    await asked._doubts(another, another.cert)
    assert pods.restarted == ["falcon-etcd-1"] * 2


@pytest.mark.parametrize(("leader", "why"), [(7, ""), (0, "it knows no leader")])
async def test_a_member_without_a_leader_serves_nobody(monkeypatch: pytest.MonkeyPatch, leader: int, why: str) -> None:
    class Member:
        def __init__(self, *_: object) -> None:
            pass

        async def __aenter__(self) -> Member:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def status(self) -> SimpleNamespace:
            return SimpleNamespace(leader_id=leader)

    monkeypatch.setattr(authorities, "Client", Member)
    assert await authorities._refusal(MEMBERS[0], "files") == why  # type: ignore[arg-type]


async def test_a_member_that_loses_its_leader_at_the_proof_has_accepted_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = Pods(age_seconds=3600)
    asked, authority = _asked(tmp_path, monkeypatch, pods, refuse=set())

    async def refusal(_: str, tls: object) -> str:
        return "" if tls == asked._root else "it knows no leader"

    monkeypatch.setattr(authorities, "_refusal", refusal)
    assert await asked._doubts(authority, authority.cert) == []
    assert pods.restarted == []


async def test_pods_that_have_ended_are_none() -> None:
    class Api:
        async def call(self, *_: object, **__: object) -> bytes:
            meta = {"uid": "u", "creationTimestamp": "2026-11-30T00:00:00Z"}
            phases = {
                "evicted": {"phase": "Failed"},
                "done": {"phase": "Succeeded"},
                "on": {"phase": "Running"},
                "new": {},
            }
            items = [{"metadata": {**meta, "name": name}, "status": status} for name, status in phases.items()]
            return json.dumps({"items": items}).encode()

    assert [pod.name for pod in await EtcdPods(Api(), "n", "a=b").list()] == ["on", "new"]  # type: ignore[arg-type]


async def test_there_is_no_doubt_where_all_members_accept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await _ask(tmp_path, monkeypatch, Pods(3600), refuse=set()) == []


def test_the_pod_of_an_endpoint_is_the_only_one_or_that_of_its_name() -> None:
    only = EtcdPod("falcon-etcd-5c9-x2", "u", 0.0, deleting=False)
    assert behind("https://falcon-etcd.falcon.svc:2379", [only]) == only
    assert behind("https://falcon-etcd.falcon.svc:2379", []) is None
    found = behind(MEMBERS[1], Pods(0).pods)
    assert found is not None
    assert found.name == "falcon-etcd-1"
