"""Change points on public series (Turing Change Point Dataset): F1 and cover, as its authors score them.

The segmentation is the most probable one (the maximum over all places of changes, by dynamic programming over the run
lengths of this project's posterior). *Published*: hazard 1/100 and unit priors, on standardised series. *Shipped*: the
hazard and the prior of the agent, and each change verified as by the agent: the medians before and after must differ by
more than noise, its correlation included.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from evaluation.signals.markdown import table
from evaluation.signals.series import Times
from falcon_core.signals.changepoint.bocd import Prior, RunLengthPosterior
from falcon_core.signals.changepoint.detector import HAZARD, PRIOR, Reference
from falcon_core.wire.reporting.messages import Detection

_MARGIN = 5
_PUBLISHED_HAZARD = 1 / 100
_TO_DEVIATION = math.sqrt(math.pi / 2)


class Series(NamedTuple):
    name: str
    values: Times  # standardised
    annotations: dict[str, list[int]]
    published: tuple[float, float]  # F1 and cover of BOCPD with default priors
    nothing: tuple[float, float]  # of no detection at all


def load(folder: Path) -> list[Series]:
    """Return the univariate series that have a published score."""
    found = []
    for path in sorted(folder.glob("*.json")):
        raw = json.loads(path.read_text())
        scores = raw["published_bocpd"]
        if raw["n_dim"] != 1 or scores["default_f1"] is None:
            continue
        values = np.asarray(raw["values"], dtype=np.float64)
        found.append(
            Series(
                raw["name"],
                (values - values.mean()) / values.std(ddof=1),
                raw["annotations"],
                (scores["default_f1"], scores["default_cover"]),
                (raw["zero_f1"], raw["zero_cover"]),
            )
        )
    return found


def most_probable_changes(values: Times, prior: Prior, hazard: float) -> list[int]:
    """Return the places at which the most probable segmentation begins a new segment."""
    posterior = RunLengthPosterior(prior, hazard=hazard, most=0)
    scores = np.zeros(1)  # of the best segmentation whose last segment has this many samples
    ended = []  # length of the best segment that ends with this sample
    for value in values.tolist():
        scores = scores + posterior.update(value)
        best = int(scores.argmax())
        ended.append(best + 1)
        scores = np.concatenate(((scores[best] + math.log(hazard),), scores + math.log1p(-hazard)))
    changes = []
    at = len(values) - int(scores.argmax())
    while at > 0:
        changes.append(at)
        at -= ended[at - 1]
    return changes[::-1]


def verified(values: Times, changes: list[int]) -> list[int]:
    """Drop the weakest change until each that is left exceeds noise."""
    changes = list(changes)
    while changes:
        weakest = _weakest(values, changes)
        if weakest is None:
            break
        del changes[weakest]
    return changes


def _weakest(values: Times, changes: list[int]) -> int | None:
    """Find the place of the change that exceeds noise least; None where all exceed it."""
    least = Detection().consecutive_iterations
    segments = [values[begin:end] for begin, end in itertools.pairwise([0, *changes, len(values)])]
    rest = np.concatenate([segment - np.median(segment) for segment in segments])
    noise = _TO_DEVIATION * float(np.abs(rest).mean())
    correlation = float((rest[1:] * rest[:-1]).mean() / max(float((rest**2).mean()), 1e-12))
    strengths: dict[int, float] = {}
    for place, (before, after) in enumerate(itertools.pairwise(segments)):
        rise = abs(float(np.median(after) - np.median(before)))
        reference = Reference(0.0, noise, before.shape[0], correlation=correlation)
        if after.shape[0] < least and place + 1 < len(changes):
            strengths[place] = 0.0
        elif not reference.exceeds_noise(rise, after.shape[0]):
            strengths[place] = rise / math.sqrt(1 / len(before) + 1 / len(after))
    return min(strengths, key=lambda place: strengths[place], default=None)


def f1(annotations: dict[str, list[int]], changes: Iterable[int]) -> float:
    """Return F1: precision against all annotators together, recall averaged over them; index 0 is in every set."""
    found = set(changes) | {0}
    sets = [set(places) | {0} for places in annotations.values()]
    precision = _matched(set().union(*sets), found) / len(found)
    recall = sum(_matched(places, found) / len(places) for places in sets) / len(sets)
    return 2 * precision * recall / (precision + recall)


def _matched(true: set[int], found: set[int]) -> int:
    left = set(found)
    count = 0
    for place in sorted(true):
        near = [change for change in left if abs(change - place) <= _MARGIN]
        if near:
            left.remove(min(near, key=lambda change: (abs(change - place), change)))
            count += 1
    return count


def cover(annotations: dict[str, list[int]], changes: Iterable[int], count: int) -> float:
    """Return the Jaccard covering of each annotator's segments by the best of ours, averaged."""
    ours = _segments(changes, count)
    covers = []
    for places in annotations.values():
        covered = sum(
            len(segment) * max(_shared(segment, own) / _union(segment, own) for own in ours)
            for segment in _segments(places, count)
        )
        covers.append(covered / count)
    return sum(covers) / len(covers)


def _segments(changes: Iterable[int], count: int) -> list[range]:
    edges = sorted({0, count, *changes})
    return [range(begin, end) for begin, end in itertools.pairwise(edges)]


def _shared(left: range, right: range) -> int:
    return len(range(max(left.start, right.start), min(left.stop, right.stop)))


def _union(left: range, right: range) -> int:
    return len(left) + len(right) - _shared(left, right)


def tcpd_table(folder: Path) -> str:
    """Return mean F1 and cover over the series."""
    loaded = load(folder)
    scores: dict[str, list[tuple[float, float]]] = {}

    def add(name: str, scored: Series, changes: list[int]) -> None:
        pair = f1(scored.annotations, changes), cover(scored.annotations, changes, len(scored.values))
        scores.setdefault(name, []).append(pair)

    for series in loaded:
        scores.setdefault("no detection, published", []).append(series.nothing)
        scores.setdefault("BOCPD, default priors, published", []).append(series.published)
        add("the same, computed here", series, most_probable_changes(series.values, Prior(), _PUBLISHED_HAZARD))
        plain = most_probable_changes(series.values, PRIOR, HAZARD)
        add("shipped prior and hazard, not verified", series, plain)
        add("shipped, verified", series, verified(series.values, plain))
    rows = []
    for name, pairs in scores.items():
        means = np.asarray(pairs).mean(axis=0)
        rows.append([name, f"{means[0]:.3f}", f"{means[1]:.3f}"])
    return table([f"Change points on {len(loaded)} public series", "F1", "cover"], rows)
