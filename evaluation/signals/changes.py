"""The Healthy and the Sick table: false reports, what was found, how late and how far off, and whether relief was."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from evaluation.signals.detectors import PERCENT, PUBLISHED, Detector, Report, shipped
from evaluation.signals.markdown import table
from evaluation.signals.series import HEALTHY, HEALTHY_LENGTHS, ONSET, RAMP_NOISES, RAMPS, SICK, Sick, noise, step

_SMALL = (0.05, 0.08, 0.09, 0.12)
_NOISES = (0.02, 0.05)
_EARLY = 3  # iterations by which a report may precede the slowdown


class Score(NamedTuple):
    """Of one detector on one kind of sick series."""

    found: float  # share of the episodes
    onset_error: float | None  # iterations, median
    delay: float | None  # iterations from the slowdown to the report, median
    relief: float | None  # share of the episodes found that end and were said to end, within 20 iterations
    false: float  # reports that are no episode, per series


def rng_of(name: str, seed: int) -> np.random.Generator:
    """Return a generator that gives the same series for the same name and seed, everywhere."""
    return np.random.default_rng([seed, *name.encode()])


def false_reports(detector: Detector, name: str, length: int, seeds: int) -> int:
    return sum(len(detector(HEALTHY[name](rng_of(name, seed), length))) for seed in range(seeds))


def judged(sick: Sick, reports: list[Report]) -> tuple[list[Report | None], int]:
    """Return for each episode the first report that names it, and how many reports name none."""
    left = list(reports)
    named: list[Report | None] = []
    for episode in sick.episodes:
        end = len(sick.times) if episode.last is None else episode.last + 5
        hit = next((report for report in left if report.reported >= episode.first and report.reported < end), None)
        hit = hit if hit is not None and hit.first >= episode.first - max(_EARLY, 20) else None
        named.append(hit)
        if hit is not None:
            left.remove(hit)
    slow = [range(episode.first, episode.last or len(sick.times)) for episode in sick.episodes]
    return named, sum(not any(report.reported in span for span in slow) for report in left)


def score(detector: Detector, name: str, seeds: int) -> Score:
    errors: list[int] = []
    delays: list[int] = []
    episodes = false = ending = relieved = 0
    for seed in range(seeds):
        sick = SICK[name](rng_of(name, seed))
        named, wrong = judged(sick, detector(sick.times))
        false += wrong
        for episode, report in zip(sick.episodes, named, strict=True):
            episodes += 1
            if report is None:
                continue
            errors.append(abs(report.first - episode.first))
            delays.append(report.reported - episode.first + 1)
            if episode.last is not None:
                ending += 1
                relieved += report.relieved is not None and report.relieved <= episode.last + 20
    return Score(
        found=len(errors) / episodes,
        onset_error=statistics.median(errors) if errors else None,
        delay=statistics.median(delays) if delays else None,
        relief=relieved / ending if ending else None,
        false=false / seeds,
    )


def healthy_table(seeds: int, seeds_of_published: int, lengths: Iterable[int] = HEALTHY_LENGTHS) -> str:
    """Count false reports: for what is shipped the sum over ``seeds`` series, for the published the mean a series."""
    lengths = tuple(lengths)
    rows = []
    for name in HEALTHY:
        counts = [str(false_reports(shipped, name, length, seeds)) for length in lengths]
        row = [name, " / ".join(counts)]
        for detector in PUBLISHED.values():
            means = [
                false_reports(detector, name, length, seeds_of_published) / seeds_of_published for length in lengths
            ]
            row.append(" / ".join(f"{mean:.1f}" for mean in means))
        rows.append(row)
    head = [f"False reports, n = {' / '.join(map(str, lengths))}", f"shipped, sum of {seeds} seeds"]
    return table([*head, *(f"{name}, mean of {seeds_of_published}" for name in PUBLISHED)], rows)


def sick_table(seeds: int, seeds_of_published: int) -> str:
    """Return share found, onset error, delay, relief and false reports a series."""
    rows = []
    for name in SICK:
        published = [_cell(score(detector, name, seeds_of_published)) for detector in PUBLISHED.values()]
        rows.append([name, _cell(score(shipped, name, seeds)), *published])
    head = ["Found %, onset error, report after, relief %, false reports a series", f"shipped, {seeds} seeds"]
    return table([*head, *(f"{name}, {seeds_of_published}" for name in PUBLISHED)], rows)


def ramp_table(seeds: int) -> str:
    """Return how many ramps and stairs were found, how far off and how long after the crossing of PERCENT."""
    rows = [[name, *(_ramp_cell(name, share, seeds) for share in RAMP_NOISES)] for name in RAMPS]
    shares = [f"noise {100 * share:g} %" for share in RAMP_NOISES]
    return table([f"Found of {seeds}, onset and report after 10 % was crossed", *shares], rows)


def _ramp_cell(name: str, share: float, seeds: int) -> str:
    factors = RAMPS[name]
    crossed = int(np.argmax(factors >= (1 + PERCENT / 100)))
    series = [shipped(factors * noise(rng_of(name, seed), len(factors), share)) for seed in range(seeds)]
    first = [reports[0] for reports in series if reports]
    cell = f"**{len(first)}**"
    if first:
        error = statistics.median(report.first - crossed for report in first)
        delay = statistics.median(report.reported - crossed for report in first)
        cell += f", {error:+.0f}, {delay:.0f} it"
    lasting = sum(bool(reports) and reports[-1].relieved is None for reports in series)
    return f"{cell}, {lasting} open at the end, {sum(map(len, series))} onsets"


def small_table(seeds: int, seeds_of_data: int) -> str:
    """Compare what the data show of a slowdown with what is reported, for slowdowns around the threshold."""
    rows = []
    for extra in _SMALL:
        for share in _NOISES:
            for place, first in (("for 300", ONSET), ("in the last 20", -20)):
                name = f"+{100 * extra:.0f} %, noise {100 * share:.0f} % {place}"
                series = step(extra, first, noise_share=share)
                reported = sum(bool(shipped(series(rng_of(name, seed)).times)) for seed in range(seeds))
                shown = np.array([_shown(series(rng_of(name, seed))) for seed in range(seeds_of_data)])
                by_mean, by_median = 100 * (shown >= np.log1p(PERCENT / 100)).mean(axis=0)
                rows.append([name, f"{by_mean:.1f}", f"{by_median:.1f}", f"{100 * reported / seeds:.0f}"])
    return table(
        [
            "Around the threshold of 10 %",
            f"all slow samples 10 % above all others by the mean of logarithms, % of {seeds_of_data}",
            "by the median, %",
            f"reported, % of {seeds}",
        ],
        rows,
    )


def _shown(sick: Sick) -> tuple[float, float]:
    """Return how far the slow samples lie above the healthy samples, as log ratios of the means and of the medians.

    The slow samples' true begin is used.
    """
    logs = np.log(sick.times)
    first = sick.episodes[0].first
    by_mean = logs[first:].mean() - logs[:first].mean()
    return float(by_mean), float(np.median(logs[first:]) - np.median(logs[:first]))


def _cell(result: Score) -> str:
    shown = [f"**{100 * result.found:.0f}**"]
    if result.onset_error is not None and result.delay is not None:
        shown += [f"±{result.onset_error:.0f}", f"{result.delay:.0f} it"]
    if result.relief is not None:
        shown.append(f"relief {100 * result.relief:.0f}")
    if result.false:
        shown.append(f"false {result.false:.2f}")
    return ", ".join(shown)
