"""Series reach the ranks of their own pod or node, and those of no other tenant."""

from __future__ import annotations

from typing import Any

import numpy as np

from falcon_anomaly.queries.answers import Series
from falcon_anomaly.queries.joining import Known, Place, joined, places
from falcon_anomaly.queries.specification import Query

PODS = {
    "u0": Known("job-a", "team-a", (0, 1)),
    "u1": Known("job-a", "team-a", (2, 3)),
    "u2": Known("job-b", "team-b", (0,)),
}
WHERE = {
    "u0": Place("x-0", "node-1", "10.0.0.1"),
    "u1": Place("x-1", "node-2", "10.0.0.2"),
    "u2": Place("x-0", "node-2", "10.0.0.2"),  # the name of another tenant's pod, and its node
}


def series(value: float, **labels: str) -> Series:
    return Series(labels, np.array([value], np.float32))


def query(**more: Any) -> Query:
    return Query(metric="m", query="m", **more)


def found(asked: Query, *several: Series) -> tuple[dict[str, list[tuple[int, float]]], int]:
    by_job, unclear = joined(asked, several, PODS, WHERE)
    return {
        job: sorted(zip(each.ranks.tolist(), each.values[:, 0].tolist(), strict=True)) for job, each in by_job.items()
    }, unclear


def test_a_series_counts_for_the_first_rank_of_its_pod() -> None:
    several = (series(1, namespace="team-a", pod="x-0"), series(2, namespace="team-a", pod="x-1"))
    assert found(query(), *several) == ({"job-a": [(0, 1.0), (2, 2.0)]}, 0)


def test_pods_of_one_name_in_two_namespaces_are_two() -> None:
    several = (series(1, namespace="team-a", pod="x-0"), series(2, namespace="team-b", pod="x-0"))
    assert found(query(), *several) == ({"job-a": [(0, 1.0)], "job-b": [(0, 2.0)]}, 0)


def test_series_of_pods_without_ranks_and_without_labels_reach_nobody() -> None:
    several = (series(1, namespace="team-c", pod="x-0"), series(2, pod="x-0"), series(3, namespace="team-a"), series(4))
    assert found(query(), *several) == ({}, 0)


def test_several_series_of_a_pod_are_unclear_and_cost_no_other_pod() -> None:
    several = (
        series(1, namespace="team-a", pod="x-0", gpu="0"),
        series(2, namespace="team-a", pod="x-0", gpu="1"),
        series(3, namespace="team-a", pod="x-1"),
    )
    assert found(query(), *several) == ({"job-a": [(2, 3.0)]}, 1)


def test_a_label_that_counts_the_ranks_of_a_pod_gives_each_its_series_in_the_order_of_numbers() -> None:
    several = (
        series(10, namespace="team-a", pod="x-0", gpu="nvidia10"),
        series(9, namespace="team-a", pod="x-0", gpu="nvidia9"),
    )
    assert found(query(rank_label="gpu"), *several) == ({"job-a": [(0, 9.0), (1, 10.0)]}, 0)


def test_with_such_a_label_one_series_for_each_rank_is_wanted() -> None:
    for labels in (["0"], ["0", "0"], ["0", "1", "2"], ["0", ""]):
        several = [series(1, namespace="team-a", pod="x-0", gpu=label) for label in labels]
        assert found(query(rank_label="gpu"), *several) == ({}, 1), labels


def test_a_nodes_series_counts_for_the_first_rank_of_each_pod_there() -> None:
    asked = query(by="node", node_label="instance")
    wanted = {"job-a": [(2, 5.0)], "job-b": [(0, 5.0)]}
    for name in ("node-2", "10.0.0.2", "10.0.0.2:9100", "node-2:9100"):
        assert found(asked, series(5, instance=name)) == (wanted, 0), name
    assert found(asked, series(5, instance="node-3"), series(6), series(7, node="node-2")) == ({}, 0)


def test_names_of_labels_are_the_administrators() -> None:
    asked = query(namespace_label="exported_namespace", pod_label="exported_pod")
    labels = {"exported_namespace": "team-a", "exported_pod": "x-1", "namespace": "monitoring", "pod": "exporter"}
    assert found(asked, series(1, **labels)) == ({"job-a": [(2, 1.0)]}, 0)


def test_a_pod_is_where_its_own_namespace_says_so() -> None:
    several = (
        series(1, uid="u0", namespace="team-a", pod="x-0", node="node-1", host_ip="10.0.0.1"),
        series(1, uid="u2", namespace="team-a", pod="x-0", node="node-1"),  # of another namespace than its job
        series(1, uid="u9", namespace="team-a", pod="x-9", node="node-1"),
        series(1, namespace="team-a", pod="x-9", node="node-1"),
    )
    assert places(PODS, several) == {"u0": Place("x-0", "node-1", "10.0.0.1")}


def test_two_series_that_say_the_same_are_one_and_two_that_differ_are_none() -> None:
    same = [series(1, uid="u0", namespace="team-a", pod="x-0", node="node-1", instance=at) for at in "ab"]
    assert places(PODS, same) == {"u0": Place("x-0", "node-1", "")}
    assert places(PODS, [*same, series(1, uid="u0", namespace="team-a", pod="x-0", node="node-2")]) == {}


def test_labels_that_the_scrape_has_renamed_count() -> None:
    labels = {"exported_namespace": "team-a", "exported_pod": "x-0", "namespace": "monitoring", "pod": "ksm-0"}
    assert places(PODS, [series(1, uid="u0", node="node-1", **labels)]) == {"u0": Place("x-0", "node-1", "")}
