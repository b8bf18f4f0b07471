"""Show what the anomaly service has learned: a line for each kind of job, and the limits of one job's kind.

It stands in a ConfigMap of Falcon's namespace, which a user reads with rights of their own there. Kinds have names of
hashes: the plugin works out to which of them the jobs belong that the user may read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from falcon_core.job_kind import PATTERN, kind_of
from falcon_core.text import clean, clip
from kubectl_falcon.kubectl import JOBS, Kubectl, find_job
from kubectl_falcon.objects import items_of
from kubectl_falcon.series.page import table
from kubectl_falcon.trouble import TroubleError

SELECTOR: Final = "--selector=app.kubernetes.io/component=anomaly-models"
FORMAT: Final = 1
DAY_SECONDS: Final = 86_400
MOST_BYTES: Final = 256 * 1024
MOST_KINDS: Final = 2000
_HEADS = ("KIND", "VERSION", "SINCE", "RUNS", "LIMITS", "LAST USED", "JOBS")
_MOST_JOBS = 3  # that a line names

Body = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """What is learned of a kind of job. Days are those since 1970; limits are percentages of the shipped floors."""

    name: str
    problem: str  # why the text cannot be shown; "" where it can
    version: int = 0
    learned: int = 0
    used: int = 0
    runs: int = 0
    limits: tuple[tuple[str, int | None, int | None], ...] = ()  # metric, in the first hour of training, after it
    discarded: str = ""

    @property
    def count(self) -> int:
        """Return how many limits are learned."""
        return sum(limit is not None for _, *pair in self.limits for limit in pair)


def models(kubectl: Kubectl, falcon_namespace: str, job: str | None, width: int | None) -> str:
    """Return the page: all kinds, or the limits of the kind of ``job``. Raises TroubleError."""
    inside = kubectl.within(falcon_namespace)
    found = items_of(inside.list_all("configmaps", SELECTOR))
    if not found:
        raise TroubleError(
            f"namespace {falcon_namespace} has no learned limits: is Falcon installed there (--falcon-namespace), with"
            " anomalies.enabled and anomalies.learning.enabled?"
        )
    data = found[0].get("data")
    texts = {str(name): str(text) for name, text in data.items()} if isinstance(data, dict) else {}
    kinds = [kind_from(name, text) for name, text in sorted(texts.items()) if PATTERN.fullmatch(name)][:MOST_KINDS]
    size = sum(len(name) + len(text.encode()) for name, text in texts.items())
    if job is not None:
        return "\n".join(_of_job(find_job(kubectl, job), kinds))
    head = f"{len(kinds)} kinds of jobs in {falcon_namespace}/{clean(found[0]['metadata']['name'])}"
    lines = [f"{head}, {size / 1024:.1f} of {MOST_BYTES // 1024} KiB"]
    if kinds:
        names = _names_by_kind(kubectl)
        lines += ["", *table([_HEADS, *(_cells(kind, names.get(kind.name, [])) for kind in kinds)], width)]
    discarded = [f"{kind.name}: {kind.discarded}" for kind in kinds if kind.discarded]
    if discarded:
        lines += ["", "Versions that were tried and discarded:", *discarded]
    return "\n".join(lines)


def kind_from(name: str, text: str) -> Kind:
    """Read a kind leniently: a later service may have written it, or a person."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        return Kind(name, "damaged: it is learned from the start")
    if body.get("format") != FORMAT:
        return Kind(name, f"of format {clip(clean(str(body.get('format'))), 16)}: this plugin reads {FORMAT}")
    discarded = body.get("discarded")
    return Kind(
        name,
        "",
        version=_whole(body.get("version")),
        learned=_whole(body.get("learned")),
        used=_whole(body.get("used")),
        runs=len(body["runs"]) if isinstance(body.get("runs"), list) else 0,
        limits=tuple(_limits(body.get("limits"))),
        discarded=_discarded(discarded) if isinstance(discarded, dict) else "",
    )


def _limits(body: Any) -> Iterator[tuple[str, int | None, int | None]]:
    for metric, pair in sorted(body.items()) if isinstance(body, dict) else ():
        if isinstance(pair, list) and len(pair) == 2:
            early, late = (each if isinstance(each, int) else None for each in pair)
            yield clip(clean(str(metric)), 64), early, late


def _discarded(body: Body) -> str:
    why = clip(clean(str(body.get("why", ""))), 300)
    return f"version {_whole(body.get('version'))} on {_day(_whole(body.get('day')))}: {why}"


def _of_job(body: Body, kinds: list[Kind]) -> Iterator[str]:
    meta = body["metadata"]
    name = kind_of(str(meta["namespace"]), body.get("spec") or {})
    kind = next((each for each in kinds if each.name == name), None)
    yield f"{meta['namespace']}/{meta['name']} is a job of kind {name}"
    if kind is None or kind.problem or not kind.limits:
        why = "" if kind is None else kind.problem or f"{kind.runs} runs are too few"
        yield f"nothing is learned of it yet{f' ({why})' if why else ''}: the shipped limits hold"
    else:
        yield f"version {kind.version} since {_day(kind.learned)}, from {kind.runs} healthy runs"
        yield ""
        yield from table([("METRIC", "FIRST HOUR", "LATER"), *map(_percent, kind.limits)], None)
        yield ""
        yield "A limit is a percentage of what is shipped; '-': the shipped limit holds."
    if kind is not None and kind.discarded:
        yield f"discarded: {kind.discarded}"


def _percent(limit: tuple[str, int | None, int | None]) -> tuple[str, str, str]:
    metric, early, late = limit
    return metric, "-" if early is None else f"{early} %", "-" if late is None else f"{late} %"


def _cells(kind: Kind, jobs: list[str]) -> tuple[str, ...]:
    more = f" and {len(jobs) - _MOST_JOBS} more" if len(jobs) > _MOST_JOBS else ""
    named = ", ".join(jobs[:_MOST_JOBS]) + more
    if kind.problem:
        return (kind.name, "-", "-", "-", kind.problem, "-", named or "-")
    since = _day(kind.learned) if kind.version else "-"
    used = _day(kind.used) if kind.used else "-"
    return (kind.name, str(kind.version), since, str(kind.runs), str(kind.count), used, named or "-")


def _names_by_kind(kubectl: Kubectl) -> dict[str, list[str]]:
    """Return which jobs are of which kind: of all namespaces where the user may list them, else of one."""
    try:
        listed = items_of(kubectl.list_all(JOBS, scope="All"))
    except TroubleError:
        try:
            listed = items_of(kubectl.list_all(JOBS))
        except TroubleError:
            return {}
    found: dict[str, list[str]] = {}
    for body in listed:
        meta = body["metadata"]
        kind = kind_of(str(meta["namespace"]), body.get("spec") or {})
        found.setdefault(kind, []).append(f"{meta['namespace']}/{meta['name']}")
    return {kind: sorted(names) for kind, names in found.items()}


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _day(days: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(min(days, 100_000) * DAY_SECONDS))
