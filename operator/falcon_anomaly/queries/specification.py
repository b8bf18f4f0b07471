"""Read what an administrator wants of Prometheus: its address, the queries, and how their series are joined to ranks.

The chart writes it as JSON. A tenant has no part in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from falcon_anomaly.series.metrics import Role, known_metrics

MOST_QUERIES: Final = 16
MOST_NAME: Final = 32  # letters of a metric: the board's name has what it is like before it
PODS: Final = "pods"  # how metrics and log call the question about pods
_QUERIED: Final = "queried"  # stands before a metric that is like none that is known

_Metric = Annotated[str, Meta(pattern=f"^[a-z][a-z0-9_]{{0,{MOST_NAME - 1}}}$")]
_Label = Annotated[str, Meta(pattern="^[a-zA-Z_][a-zA-Z0-9_]{0,63}$")]
_Text = Annotated[str, Meta(min_length=1, max_length=4096)]
_Selector = Annotated[str, Meta(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*(\{[^{}]*\})?$", max_length=1024)]


class Query(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One query, whose series become a metric of the ranks that they belong to."""

    metric: _Metric
    query: _Text
    like: str = ""  # the known metric as which it is compared; empty: by ratios, each way, from a half more or less on
    by: Literal["pod", "node"] = "pod"
    namespace_label: _Label = "namespace"
    pod_label: _Label = "pod"
    node_label: _Label = "node"
    rank_label: Annotated[str, Meta(pattern="^([a-zA-Z_][a-zA-Z0-9_]{0,63})?$")] = ""

    @property
    def name(self) -> str:
        """Return how the board calls the metric: what stands before the colon says how it is compared."""
        return f"{self.like or _QUERIED}:{self.metric}"


class Specification(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where Prometheus is, and what it is asked."""

    url: Annotated[str, Meta(max_length=1024)]
    queries: Annotated[tuple[Query, ...], Meta(max_length=MOST_QUERIES)]
    pods: _Selector = 'kube_pod_info{job="kube-state-metrics"}'


def parse(raw: object) -> Specification | None:
    """Read the JSON; None where there is no query. Raises ValueError, which names the field and the remedy.

    ``raw``: None where the variable is not set.
    """
    if raw is None:
        return None
    try:
        found = msgspec.json.decode(str(raw), type=Specification)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(f"anomalies.prometheus of the chart is wrong: {error}") from None
    _check_url(found.url)
    metrics = [query.metric for query in found.queries]
    if PODS in metrics:
        raise ValueError(f"anomalies.prometheus.queries: call the metric {PODS} otherwise, the service uses this name")
    if len(set(metrics)) < len(metrics):
        raise ValueError("anomalies.prometheus.queries: two queries have the same metric, give each a name of its own")
    usable = sorted(name for name, each in known_metrics().items() if each.role < Role.LOSS and not each.part_of)
    for query in found.queries:
        if query.like and query.like not in usable:
            raise ValueError(
                f"anomalies.prometheus.queries: {query.metric} is like {query.like}, write one of {', '.join(usable)}"
            )
    return found if found.queries else None


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        known = bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    odd = not known or parts.scheme not in ("http", "https") or parts.query or parts.fragment or "@" in parts.netloc
    if odd or not re.fullmatch(r"[!-~]+", url):
        raise ValueError("anomalies.prometheus.url: write http(s)://host[:port][/path], without user and parameters")


def pods_query(selector: str, uids: Iterable[str]) -> str:
    """Return the query for what is known of these pods; a uid that no pod can have is left out."""
    usable = sorted(uid for uid in uids if re.fullmatch("[0-9A-Za-z-]{1,64}", uid))
    name, _, matchers = selector.rstrip("}").partition("{")
    given = matchers.strip().rstrip(",")
    return f'{name}{{{given}{"," if given else ""}uid=~"{"|".join(usable)}"}}'
