"""An administrator's queries are read as written, and what cannot be used is refused with the field and the remedy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from falcon_anomaly.queries.specification import MOST_QUERIES, Query, parse, pods_query
from falcon_anomaly.series.metrics import Role, metric

QUERY = {"metric": "switch_drops", "query": "rate(drops[1m])"}


def written(*queries: dict[str, Any], **more: Any) -> str:
    return json.dumps({"url": "http://prometheus.monitoring.svc:9090", "queries": queries, **more})


def test_a_query_is_joined_by_pod_unless_it_says_otherwise() -> None:
    found = parse(written(QUERY))
    assert found is not None
    (query,) = found.queries
    assert (query.by, query.namespace_label, query.pod_label, query.rank_label) == ("pod", "namespace", "pod", "")
    assert found.pods == 'kube_pod_info{job="kube-state-metrics"}'


def test_what_a_metric_is_like_says_how_it_is_compared() -> None:
    plain, like = Query(metric="a", query="a"), Query(metric="a", query="a", like="nic_errors")
    assert (plain.name, metric(plain.name).role, metric(plain.name).ratio) == ("queried:a", Role.RESOURCE, True)
    assert (like.name, metric(like.name)) == ("nic_errors:a", metric("nic_errors"))


def test_without_queries_none_is_asked() -> None:
    assert parse(None) is None
    assert parse(written()) is None


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ("{", "anomalies.prometheus"),
        (written({"metric": "a"}), "`query` - at `$.queries[0]`"),
        (written({**QUERY, "metric": "Has Spaces"}), "$.queries[0].metric"),
        (written({**QUERY, "by": "rack"}), "$.queries[0].by"),
        (written({**QUERY, "podLabl": "pod"}), "podLabl"),
        (written({**QUERY, "like": "loss"}), "write one of collecting, computation"),
        (written({**QUERY, "like": "wait"}), "write one of"),
        (written({**QUERY, "metric": "pods"}), "call the metric pods otherwise"),
        (written(QUERY, QUERY), "same metric"),
        (written(*({**QUERY, "metric": f"m{at}"} for at in range(MOST_QUERIES + 1))), "$.queries"),
        (written(QUERY, pods="kube_pod_info or up"), "$.pods"),
        (written(QUERY, url="ftp://prometheus"), "anomalies.prometheus.url"),
        (written(QUERY, url="http://user:secret@prometheus"), "without user"),
        (written(QUERY, url="http://prometheus:port"), "anomalies.prometheus.url"),
        (written(QUERY, url="http://prometheus/?a=b"), "anomalies.prometheus.url"),
    ],
)
def test_what_cannot_be_used_is_named(raw: str, named: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(raw)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("selector", "asked"),
    [
        ("kube_pod_info", 'kube_pod_info{uid=~"a|b-1"}'),
        ("kube_pod_info{}", 'kube_pod_info{uid=~"a|b-1"}'),
        ('kube_pod_info{job="ksm", }', 'kube_pod_info{job="ksm",uid=~"a|b-1"}'),
    ],
)
def test_pods_are_asked_for_by_their_uids_and_a_uid_cannot_change_the_query(selector: str, asked: str) -> None:
    assert pods_query(selector, ["b-1", "a", '"} or up{a="', ".*", ""]) == asked
