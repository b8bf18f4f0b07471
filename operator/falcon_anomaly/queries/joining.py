"""Find the rank that each series of an answer belongs to, by the pod or the node in its labels.

A pod counts by its namespace and name, as Prometheus' own series about pods have them, and the namespace must be that
of the job's certificate. So no series of a tenant's pod reaches a job of another tenant.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from falcon_anomaly.queries.answers import Floats, Series
from falcon_anomaly.queries.specification import Query


class Known(NamedTuple):
    """A pod whose agent has sent series, as the gateway and its chunks have named it."""

    job_uid: str
    namespace: str
    ranks: tuple[int, ...]  # in their order


class Place(NamedTuple):
    """What Prometheus knows of a pod."""

    pod: str
    node: str
    address: str  # of the node


class Joined(NamedTuple):
    """What a query says of one job's ranks."""

    ranks: npt.NDArray[np.intp]  # [row]
    values: Floats  # [row, window]


def places(pods: Mapping[str, Known], series: Iterable[Series]) -> dict[str, Place]:
    """Return where pods are, by uid.

    A pod of another namespace, or of which two series say different things, is left out. ``series``: of the shape of
    kube-state-metrics' ``kube_pod_info``. Where the scrape has renamed its labels (``exported_pod``), these count.
    """
    found: dict[str, set[Place]] = defaultdict(set)
    for labels, _ in series:
        known = pods.get(labels.get("exported_uid") or labels.get("uid", ""))
        if known is not None and (labels.get("exported_namespace") or labels.get("namespace")) == known.namespace:
            uid = labels.get("exported_uid") or labels["uid"]
            names = (labels.get(f"exported_{name}") or labels.get(name, "") for name in ("pod", "node", "host_ip"))
            found[uid].add(Place(*names))
    return {uid: next(iter(several)) for uid, several in found.items() if len(several) == 1}


def joined(
    query: Query, series: Sequence[Series], pods: Mapping[str, Known], where: Mapping[str, Place]
) -> tuple[dict[str, Joined], int]:
    """Return what a query says of each job, by uid, and of how many pods it is unclear which series is whose.

    A pod's only series counts for its first rank, as series of its container do. With ``rank_label`` there must be one
    for each rank; they belong to the ranks in the order of that label.
    """
    of_pod = _by_pod(query, series, pods, where) if query.by == "pod" else _by_node(query, series, where)
    rows: dict[str, list[tuple[int, Floats]]] = defaultdict(list)
    unclear = 0
    for uid, several in of_pod.items():
        ranks = _ranks(query, several, pods[uid].ranks)
        unclear += ranks is None
        rows[pods[uid].job_uid] += zip(ranks or (), (one.values for one in _ordered(query, several)), strict=False)
    return {
        job: Joined(np.array([rank for rank, _ in each], np.intp), np.stack([values for _, values in each]))
        for job, each in rows.items()
        if each
    }, unclear


def _by_pod(
    query: Query, series: Sequence[Series], pods: Mapping[str, Known], where: Mapping[str, Place]
) -> dict[str, list[Series]]:
    uids = {(pods[uid].namespace, place.pod): uid for uid, place in where.items()}
    found: dict[str, list[Series]] = defaultdict(list)
    for one in series:
        uid = uids.get((one.labels.get(query.namespace_label, ""), one.labels.get(query.pod_label, "")))
        if uid is not None:
            found[uid].append(one)
    return found


def _by_node(query: Query, series: Sequence[Series], where: Mapping[str, Place]) -> dict[str, list[Series]]:
    """Return the series of each pod's node, whose label has the node's name, or its address with or without a port."""
    uids: dict[str, list[str]] = defaultdict(list)
    for uid, place in where.items():
        for name in {place.node, place.address} - {""}:
            uids[name].append(uid)
    found: dict[str, list[Series]] = defaultdict(list)
    for one in series:
        label = one.labels.get(query.node_label, "")
        host = re.sub(r":\d+$", "", label).strip("[]")
        for uid in uids.get(label) or uids.get(host) or []:
            found[uid].append(one)
    return found


def _ranks(query: Query, several: Sequence[Series], ranks: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the ranks of a pod's series in their order; None where it is not clear which is whose."""
    if not query.rank_label:
        return ranks[:1] if len(several) == 1 else None
    labels = {one.labels.get(query.rank_label, "") for one in several}
    return ranks if "" not in labels and len(labels) == len(several) == len(ranks) else None


def _ordered(query: Query, several: Sequence[Series]) -> list[Series]:
    def place(one: Series) -> list[tuple[int, str]]:
        parts = re.findall(r"\d{1,18}|\D+", one.labels.get(query.rank_label, ""))
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]

    return sorted(several, key=place) if query.rank_label else list(several)
