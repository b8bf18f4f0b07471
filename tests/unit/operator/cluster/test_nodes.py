"""The node cache under racing events, taints that leave others alone, and the circuit breaker."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_operator.api import TAINT_FENCED
from falcon_operator.cluster.nodes import RELIST_SECONDS, Breaker, NodeCache, with_taint, without_taint
from falcon_operator.cluster.views import NodeObject, Taint, node_from_body
from falcon_operator.ports import Rejected

NOW = 1795176000.0


def a_node(name: str, version: int = 1, *, ready: bool = True, uid: str = "u", taints: Any = None) -> NodeObject:
    return node_from_body(
        {
            "metadata": {"name": name, "uid": uid, "resourceVersion": str(version)},
            "spec": {"taints": taints or []},
            "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
        }
    )


def listed(*nodes: NodeObject, at: float = 0.0) -> NodeCache:
    cache = NodeCache()
    cache.begin_listing()
    cache.end_listing(nodes, at)
    return cache


def names(cache: NodeCache) -> set[str]:
    return {view.name for view in cache.views()}


def test_the_cache_is_stale_until_listed_and_again_after_a_while() -> None:
    assert NodeCache().stale(0.0)
    cache = listed(at=100.0)
    assert not cache.stale(100.0 + RELIST_SECONDS)
    assert cache.stale(101.0 + RELIST_SECONDS)


def test_only_what_shows_in_a_view_counts_as_a_change() -> None:
    cache = listed(a_node("a", 1))
    assert not cache.event(a_node("a", 2), deleted=False), "a heartbeat"
    assert cache.event(a_node("a", 3, ready=False), deleted=False)
    assert not cache.views()[0].ready
    assert cache.event(a_node("b", 4), deleted=False)
    assert cache.event(a_node("b", 5), deleted=True)
    assert names(cache) == {"a"}


def test_an_older_event_changes_nothing() -> None:
    cache = listed(a_node("a", 10))
    assert not cache.event(a_node("a", 9, ready=False), deleted=False)
    assert cache.views()[0].ready


def test_the_deletion_of_a_namesake_is_not_its_own() -> None:
    cache = listed(a_node("a", uid="new"))
    assert not cache.event(a_node("a", uid="old"), deleted=True)
    assert names(cache) == {"a"}


def test_events_during_a_listing_are_not_lost_to_it() -> None:
    cache = listed(a_node("a", 1), a_node("b", 1))
    cache.begin_listing()
    cache.event(a_node("a", 5, ready=False), deleted=False)
    cache.event(a_node("b", 6), deleted=True)
    cache.end_listing([a_node("a", 1), a_node("b", 1)], 0.0)  # the state before these events
    assert names(cache) == {"a"}
    assert not cache.views()[0].ready


def test_a_listing_forgets_what_is_gone_unseen() -> None:
    cache = listed(a_node("a"), a_node("b"))
    cache.begin_listing()
    cache.end_listing([a_node("b")], 0.0)
    assert names(cache) == {"b"}


OTHERS = [Taint(key="x", effect="NoExecute", value="1"), Taint(key="k", effect="NoExecute", value="theirs")]


def test_a_taint_is_added_beside_the_others_and_dated() -> None:
    taints = with_taint(OTHERS, "k", "v", NOW)
    assert taints is not None
    assert taints[:2] == OTHERS
    assert taints[2] == Taint(key="k", effect="NoSchedule", value="v", time_added="2026-11-20T12:00:00Z")
    assert with_taint(taints, "k", "v", NOW + 60) is None
    changed = with_taint(taints, "k", "w", NOW)
    assert changed is not None
    assert [taint.value for taint in changed] == ["1", "theirs", "w"]


def test_a_taint_is_removed_alone() -> None:
    assert without_taint(OTHERS, "y") is None
    assert without_taint(OTHERS, "x") == [OTHERS[1]]


def fenced(name: str, ago_seconds: float) -> NodeObject:
    taints = with_taint([], TAINT_FENCED, "i", NOW - ago_seconds)
    assert taints is not None
    return a_node(
        name, taints=[{"key": taint.key, "effect": taint.effect, "timeAdded": taint.time_added} for taint in taints]
    )


def test_the_breaker_counts_the_window_and_names_the_remedy() -> None:
    breaker = Breaker(limit=2, window_seconds=3600)
    breaker.check("c", [fenced("a", 10), fenced("b", 4000), a_node("c")], NOW)
    with pytest.raises(Rejected, match=r"a, b were fenced.*FALCON_FENCE_LIMIT"):
        breaker.check("c", [fenced("a", 10), fenced("b", 3000), a_node("c")], NOW)


def test_fencing_a_fenced_node_again_does_not_count_again() -> None:
    Breaker(limit=1, window_seconds=3600).check("a", [fenced("a", 10)], NOW)


def test_a_limit_of_none_fences_nothing() -> None:
    with pytest.raises(Rejected):
        Breaker(limit=0, window_seconds=3600).check("a", [], NOW)
